"""What an export is: a verdict with its reason, and the text for the other tool. Pure.

Rule: where a tool cannot say what the plan says, the verdict is not "exact", and the reason names by how much.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from appliance.plan.schema import Plan

Verdict = Literal["exact", "approximate", "impossible"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How true to the plan another tool can be.

    `argv`: arguments for its command line; `document`: a file for it; both empty when there is nothing to say or it is
    impossible. `needs`: what must be given before there is a text, "" when there is one. `differs`: by what name and
    how much the result is not the plan. `notes`: what to know before it is used. `host_bytes`: what all cards together
    move to host RAM with it, None = not computed.
    """

    verdict: Verdict
    reason: str
    argv: tuple[str, ...] = ()
    document: Mapping[str, Any] | None = None
    needs: str = ""
    differs: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    host_bytes: int | None = None

    @property
    def text(self) -> str:
        """What goes to the file or the terminal: one line for a shell, or JSON."""
        if self.document is not None:
            return json.dumps(self.document, indent=2) + "\n"
        return shlex.join(self.argv) + "\n" if self.argv else ""


def impossible(reason: str) -> Outcome:
    """No text of that tool means the plan, not even nearly."""
    return Outcome("impossible", reason)


def is_exl3(plan: Plan) -> bool:
    """Whether the experts are EXL3: only there is a codebook, or a number of bits by layer."""
    return plan.geometry.codebook is not None or plan.geometry.bits_per_layer is not None


def engram_argv(plan: Plan) -> tuple[str, ...]:
    """vLLM's own switch for Engram tables. Source: vllm/config/offload.py, `--engram-config`."""
    engram = plan.host.engram
    if engram is None:
        return ()
    return ("--engram-config", json.dumps({"cpu_offload": engram.mode == "pinned"}))
