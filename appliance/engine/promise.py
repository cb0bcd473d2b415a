"""What an engine must show before it is called ready. Pure.

`needed` in a probe's result comes from here; what follows from a failure, serving all the same or not, is
`allow_degraded`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.state import EngineProfile


@dataclass(frozen=True, slots=True)
class Promise:
    """What is promised of one engine.

    `kind`: as in `[engine] kind`; remedies are told in its words. `demo`: a model that tests the plumbing: nothing is
    needed of it, and what takes long is not asked. `floor_tok_per_s`: pace of one stream, 0 = none was promised.
    `streams`: so many prompts at once are read before anything is timed; 0 = none: on a CPU that takes long, and an
    engine that serves others would slow down. `tools`: agents are to work with it, so that tool calls are needed.
    `host_bytes`: what the plan puts into host RAM, None = no plan says. `prove`: two streams at once of
    `longest_tokens` (prompt and answer; None = what the engine says). `hang_s`: longest silence of an engine that
    works, 0 = nobody says. `allow_degraded`: it serves without what is needed, and findings say so.
    """

    kind: str = "command"
    demo: bool = False
    floor_tok_per_s: float = 0.0
    streams: int = 0
    tools: bool = True
    host_bytes: int | None = None
    prove: bool = False
    longest_tokens: int | None = None
    hang_s: float = 180.0
    allow_degraded: bool = True

    @property
    def declared(self) -> bool:
        """Somebody relies on its answers."""
        return not self.demo


NOTHING = Promise()
"""Of an engine that nobody has declared: it may serve as it is, at any pace."""


def usual(kind: str, profile: EngineProfile, hang_s: float) -> Promise:
    """What is promised of an engine whose adapter promises nothing of its own."""
    return Promise(
        kind=kind,
        demo=profile.demo,
        floor_tok_per_s=profile.floor_tok_per_s,
        streams=profile.streams if kind == "command" else 0,
        tools=not profile.demo,
        hang_s=hang_s,
    )
