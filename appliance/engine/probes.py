"""Asks a warm engine what it can do: which dialects, who counts tokens, are partial answers continued, images.

Talks HTTP to the engine. Rules:
- One request at a time, a few tokens each, `PROBE_S` for one and `LIMIT_S` for all.
- A probe that fails shows nothing and is noted; it never fails the warm-up. A dialect is absent only where the engine
  says that it does not know the path.
- Nothing is believed that one answer says: a counter must agree with the usage of a real completion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from appliance.engine import probe_forms as forms
from appliance.engine.probe_forms import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Answer, Verdict
from appliance.engine.probe_stream import metrics, post
from gateway.prewarm import sequences
from gateway.state import EngineAbilities

LIMIT_S = 60.0
"""For all probes together; what was not asked by then counts as not shown."""
PROBE_S = 20.0
"""For one: an engine that somebody else runs may be busy with other people's requests."""


@dataclass(frozen=True, slots=True)
class Shown:
    """`notes`: what went otherwise than a plain yes or no, for the log."""

    abilities: EngineAbilities
    notes: tuple[str, ...] = ()


async def probe(
    client: httpx.AsyncClient,
    model: str,
    progress: Callable[[str, float | None], None],
    *,
    limit_s: float = LIMIT_S,
    probe_s: float = PROBE_S,
    sequence_folder: Path | None = None,
) -> Shown:
    """What the engine showed within `limit_s` seconds. Raises nothing.

    `client` has the engine's URL and key. The engine has answered a chat completion of `model` before.
    `sequence_folder`: where it saves the cache of a sequence; None = it is not asked to.
    """
    probes = _Probes(client, model, probe_s)
    late = f"not all probes ended within {max(0.0, limit_s):.3g} s"
    if limit_s <= 0:
        probes.notes.append(late)
        return probes.shown()
    try:
        async with asyncio.timeout(limit_s):
            progress("asking for the dialects", 0.6)
            await probes.ask_dialects()
            progress("asking for its token counts", 0.75)
            await probes.ask_counters()
            progress("asking whether it continues an answer", 0.85)
            await probes.ask_continuation()
            progress("asking whether it reads images", 0.95)
            await probes.ask_images()
            await probes.ask_kv_tokens()
            if sequence_folder is not None:
                await probes.ask_copies(sequence_folder)
    except TimeoutError:
        probes.notes.append(late)
    return probes.shown()


@dataclass(slots=True)
class _Probes:
    """One asking; `shown` may be called at any time."""

    client: httpx.AsyncClient
    model: str
    probe_s: float
    notes: list[str] = field(default_factory=list)
    _dialects: list[str] = field(default_factory=lambda: list(forms.DIALECTS))
    """Those that are not known to be absent: where nobody knows, the engine will say."""
    _prompts: dict[str, int | None] = field(default_factory=dict)
    """Prompt tokens of each dialect's question, by usage."""
    _counters: dict[str, str] = field(default_factory=dict)
    _continuation: list[str] = field(default_factory=list)
    _images: bool | None = None
    _copies: int = 0
    _folder: Path | None = None
    _kv_tokens: int | None = None

    def shown(self) -> Shown:
        abilities = EngineAbilities(
            dialects=tuple(self._dialects),
            counters=dict(self._counters),
            continuation=tuple(self._continuation),
            images=self._images,
            sequence_copies=self._copies,
            sequence_folder=str(self._folder) if self._copies else None,
            kv_tokens=self._kv_tokens,
        )
        return Shown(abilities, tuple(self.notes))

    async def ask_dialects(self) -> None:
        for path in forms.DIALECTS:
            answer = await self._post(path, forms.question(path, self.model))
            match forms.verdict(path, answer):
                case Verdict.SERVED:
                    self._prompts[path] = forms.prompt_tokens(path, answer)
                case Verdict.UNCLEAR:
                    self._note(path, answer)
                case Verdict.ABSENT:
                    if answer.status == 200:
                        self._note(path, answer)
                    if path != CHAT:  # the warm-up has used it
                        self._dialects.remove(path)

    async def ask_counters(self) -> None:
        for path in self._dialects:
            prompt = self._prompts.get(path)
            for counter in forms.COUNTERS[path]:
                if path in self._counters or prompt is None:
                    break
                answer = await self._post(counter, forms.question(path, self.model))
                count = forms.counted(counter, answer)
                if count == prompt:
                    self._counters[path] = counter
                elif count is not None:
                    self.notes.append(f"{counter}: counts {count} where {path} reads {prompt}")
                elif answer.status != 200 and not forms.absent(answer):
                    self._note(counter, answer)
        if RESPONSES in self._dialects and RESPONSES not in self._counters and COMPLETIONS in self._counters:
            self._counters[RESPONSES] = self._counters[COMPLETIONS]  # the gateway lets it count the text

    async def ask_continuation(self) -> None:
        for path in (CHAT, MESSAGES):
            if await self._continues(path):
                self._continuation.append(path)
        if await self._continues(CHAT, forms.FLAGS) and (CHAT in self._continuation or await self._flag_matters()):
            self._continuation.append(forms.FLAGGED)

    async def _continues(self, path: str, flags: Mapping[str, bool] | None = None) -> bool:
        """A counter that says no is believed without flags only: it may not look at them where completions do."""
        prompt = self._prompts.get(path)
        if prompt is None:
            return False
        short, long = (forms.question(path, self.model, partial, flags) for partial in forms.PARTIALS)
        if path in self._counters:
            count = await self._count(path, long)
            if forms.continues(prompt, await self._count(path, short), count):
                used = await self._used(path, long)
                if used != count:
                    self.notes.append(f"{path}: reads {used} tokens of a partial answer that it counts as {count}")
                return used == count
            if not flags:
                return False
        used = await self._used(path, long)
        if used is None:  # refused
            return False
        return forms.continues(prompt, await self._used(path, short), used)

    async def _flag_matters(self) -> bool:
        """Whether continue_final_message takes the end of turn away. An engine that obeys add_generation_prompt
        alone may come to the same sum by chance, when its generation prompt is longer than an answer's head."""
        both = await self._used(CHAT, forms.question(CHAT, self.model, "blue", forms.FLAGS))
        one = {"add_generation_prompt": False}
        closed = await self._used(CHAT, forms.question(CHAT, self.model, "blue", one))
        return both is not None and (closed is None or closed > both)

    async def ask_images(self) -> None:
        answer = await self._post(CHAT, forms.image_question(self.model))
        self._images = forms.sees_images(answer, self._prompts.get(CHAT))
        if self._images is None:
            self._note("an image", answer)

    async def ask_copies(self, folder: Path) -> None:
        """One of the questions above into every other sequence: nothing that anybody wrote."""
        states = await sequences.look(self.client)
        latest = max(states, key=lambda state: state.last_task, default=None)
        if latest is None or len(states) < 2:
            return
        others = [state.id for state in states if state is not latest]
        try:
            done = await sequences.copy(self.client, folder, latest.id, others, lambda: True)
        except OSError as error:
            self.notes.append(f"a copy of a sequence: {error}")
            return
        if len(done) == len(others):
            self._copies, self._folder = len(states), folder
        else:
            self.notes.append(f"a copy of a sequence: {len(done)} of {len(others)} took it")

    async def ask_kv_tokens(self) -> None:
        """Metrics are not every engine's, and nothing is wrong where there are none."""
        self._kv_tokens = forms.kv_tokens(await metrics(self.client, self.probe_s))

    # What the engine says

    async def _count(self, path: str, body: Mapping[str, Any]) -> int | None:
        counter = self._counters[path]
        return forms.counted(counter, await self._post(counter, body))

    async def _used(self, path: str, body: Mapping[str, Any]) -> int | None:
        return forms.prompt_tokens(path, await self._post(path, body))

    def _note(self, what: str, answer: Answer) -> None:
        how = answer.why or (f"answered {answer.status}" + (" in another form" if answer.status == 200 else ""))
        self.notes.append(f"{what}: {how}")

    async def _post(self, path: str, body: Mapping[str, Any]) -> Answer:
        return await post(self.client, path, body, self.probe_s)
