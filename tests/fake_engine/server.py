"""The fake engine as an ASGI app: routes, key check, loading, control endpoints.

Rules: `/_fake/*` answers at all times, also while loading or hung. Death is the owner's business: the app calls
`on_death` and goes on as if it had not; only the owner can end the process or close the sockets.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

from starlette.types import Receive, Scope, Send

from tests.fake_engine import refusal, wire
from tests.fake_engine.asks import Ask, admit, parse
from tests.fake_engine.counts import count
from tests.fake_engine.knobs import KnobError, Knobs, merged, parse_patch
from tests.fake_engine.refusal import Refusal
from tests.fake_engine.reply import JSON_TYPE, Bench, Reply
from tests.fake_engine.scheduler import Scheduler
from tests.fake_engine.stats import RequestRecord, Stats

Route = Callable[[bytes, Send], Awaitable[None]]


class FakeEngine:
    """One engine. `key` is what clients must send as a bearer token, None lets all in.

    `on_death` is called when a knob says die. `now` is a monotonic clock in seconds; with a virtual-time loop
    pass `loop.time`. `extra` is merged into the stats (the process adds its pid and children).
    """

    def __init__(
        self,
        knobs: Knobs | None = None,
        *,
        key: str | None = None,
        on_death: Callable[[Knobs], None] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.knobs = self._first_knobs = knobs or Knobs()
        self.extra: dict[str, Any] = {}
        self.stats = Stats()
        self._key = key
        self._on_death = on_death
        self._now = now
        self._started_s = now()
        self._death: asyncio.TimerHandle | None = None
        self.scheduler = Scheduler(self.knobs, now)
        self._routes: dict[tuple[str, str], Route] = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/_fake/stats"): self._stats,
            ("POST", "/_fake/knobs"): self._merge,
            ("POST", "/_fake/reset"): self._reset,
            ("POST", "/reset_prefix_cache"): self._reset_cache,
        }

    @property
    def loading(self) -> bool:
        """Whether /health still says 503."""
        return self.knobs.never_ready or self._now() < self._started_s + self.knobs.load_s

    def apply(self, knobs: Knobs) -> None:
        """Go on with other knobs; running replies keep theirs but follow the new pace."""
        self.knobs = knobs
        self.scheduler.apply(knobs)

    def die(self) -> None:
        """Die as the knobs say."""
        if self._on_death is not None:
            self._on_death(self.knobs)

    def arm_death(self) -> None:
        """Start counting die_after_s, needs a running loop; a former count ends."""
        self.disarm()
        if self.knobs.die_after_s is not None:
            self._die_in(self.knobs.die_after_s)

    def _die_in(self, seconds: float) -> None:
        self._death = asyncio.get_running_loop().call_later(seconds, self.die)

    def disarm(self) -> None:
        """Forget die_after_s and die_in_request_s."""
        if self._death is not None:
            self._death.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        assert scope["type"] == "http", scope["type"]
        path, post = scope["path"], scope["method"] == "POST"
        control = path.startswith("/_fake/")
        if not control:
            self.stats.paths[path] += 1
        if path != "/health" and not self._allowed(scope):
            await self._refuse(send, refusal.BAD_KEY, path)
        elif self.loading and not control:
            await self._refuse(send, refusal.LOADING, path)
        elif post and path in self.knobs.dialects:
            await self._complete(scope, receive, send)
        elif post and path in self.knobs.counts:
            await self._count(path, receive, send)
        elif (route := self._routes.get((scope["method"], path))) is None:
            await self._refuse(send, refusal.NOT_FOUND, path)
        elif (body := await _read(receive)) is not None:
            await route(body, send)

    def _allowed(self, scope: Scope) -> bool:
        """Both engines take a bearer token; llama.cpp also takes x-api-key."""
        if self._key is None:
            return True
        headers = dict(scope["headers"])
        sent = headers.get(b"authorization", b"")
        if not sent and self.knobs.style == "llama":
            sent = b"Bearer " + headers.get(b"x-api-key", b"")
        return hmac.compare_digest(sent, b"Bearer " + self._key.encode())

    async def _refuse(self, send: Send, said: Refusal, path: str) -> None:
        await _answer(send, said.status, said.body(self.knobs.style, path))

    async def _count(self, path: str, receive: Receive, send: Send) -> None:
        body = await _read(receive)
        if body is None:
            return
        if self.knobs.hang_counts:
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        answer = count(body, path, self.knobs)
        if isinstance(answer, Refusal):
            await self._refuse(send, answer, path)
        else:
            await _answer(send, 200, answer)

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        record = RequestRecord(headers.get(b"x-request-id", b"").decode("latin-1"), scope["path"], self._now())
        self.stats.arrive(record)
        body = await _read(receive)
        if body is None:
            self.stats.end(record, "aborted", self._now())
            return
        knobs = self.knobs
        if knobs.echo_body:
            self.stats.echo(scope["path"], scope["headers"], body, knobs.echo_body)
        if knobs.die_on_marker and knobs.die_on_marker.encode() in body:
            self.die()
        if knobs.die_in_request_s is not None:
            self.disarm()
            self._die_in(knobs.die_in_request_s)
        if knobs.only_marker and knobs.only_marker.encode() not in body:
            knobs = without_faults(knobs)
        ask = _admit(body, scope["path"], knobs)
        if isinstance(ask, Refusal):
            self.stats.end(record, "rejected", self._now())
            await self._refuse(send, ask, scope["path"])
            return
        if knobs.host_fault and self.scheduler.from_host(ask.prompt):
            knobs = self._host_fault(knobs)
        bench = Bench(self.scheduler, self.stats, self._now, self._spent)
        is_check = headers.get(b"user-agent", b"").startswith(b"moe-appliance/")
        with self.scheduler.check() if is_check else nullcontext():
            await Reply(bench, knobs, ask, record, scope, send).run(receive)

    def _host_fault(self, knobs: Knobs) -> Knobs:
        """A prompt comes back from the host's tier, and something else with it."""
        if knobs.host_fault == "crash":
            self.die()
        return merged(knobs, {"reply_text": "another reply than before"})

    def _spent(self) -> None:
        limit = self.knobs.die_after_tokens
        if limit is not None and self.stats.tokens_out >= limit:
            self.die()

    async def _health(self, _: bytes, send: Send) -> None:
        if self.knobs.hang_health:
            await asyncio.Event().wait()
        await _answer(send, 200, {"status": "ok"})

    async def _models(self, _: bytes, send: Send) -> None:
        model = {
            "id": self.knobs.model,
            "object": "model",
            "created": 0,
            "owned_by": "fake",
            "max_model_len": self.knobs.context_tokens,
        }
        await _answer(send, 200, {"object": "list", "data": [model]})

    async def _metrics(self, _: bytes, send: Send) -> None:
        held = self.scheduler.cache.tokens / max(self.knobs.cache_tokens, 1)
        waiting = self.stats.sequences - self.scheduler.decoding
        lines = (
            ("gauge", "vllm:num_requests_running", self.scheduler.decoding),
            ("gauge", "vllm:num_requests_waiting", waiting),
            ("gauge", "vllm:kv_cache_usage_perc", round(held, 6)),
            ("counter", "vllm:prompt_tokens_total", self.stats.prompt_tokens),
            ("counter", "vllm:generation_tokens_total", self.stats.tokens_out),
            ("counter", "vllm:prefix_cache_hits_total", self.stats.cached_tokens),
        )
        label = f'{{model_name="{self.knobs.model}"}}'
        text = "".join(f"# TYPE {name} {kind}\n{name}{label} {value}\n" for kind, name, value in lines)
        await _send(send, 200, (b"content-type", b"text/plain; version=0.0.4"), text.encode())

    async def _stats(self, _: bytes, send: Send) -> None:
        plain = {"now_s": self._now(), "loading": self.loading, "cache_tokens_held": self.scheduler.cache.tokens}
        await _answer(send, 200, self.stats.as_json() | plain | self.extra)

    async def _merge(self, body: bytes, send: Send) -> None:
        try:
            patch = parse_patch(body)
            self.apply(merged(self.knobs, patch))
        except KnobError as error:
            await self._refuse(send, refusal.bad(str(error)), "")
            return
        await _answer(send, 200, {"ok": True})
        if "die_after_s" in patch:
            self.arm_death()

    async def _reset_cache(self, _: bytes, send: Send) -> None:
        if not self.knobs.reset_path:
            await self._refuse(send, refusal.NOT_FOUND, "/reset_prefix_cache")
            return
        self.scheduler.cache.clear()
        await _answer(send, 200, {"success": True})

    async def _reset(self, _: bytes, send: Send) -> None:
        # Requests that still run keep the old stats object, so that the new one starts and stays consistent.
        self.stats = Stats()
        self.disarm()
        self.scheduler.cache.clear()
        self.scheduler.host.clear()
        self.apply(self._first_knobs)
        await _answer(send, 200, {"ok": True})


_NO_FAULTS = {
    "hang": False,
    "silent_s": 0.0,
    "reject_status": None,
    "stall_after": None,
    "error_in_stream": None,
    "truncate_after": None,
    "cut_after": None,
}


def without_faults(knobs: Knobs) -> Knobs:
    """`knobs` for a request that only_marker spares."""
    return merged(knobs, _NO_FAULTS)


def _admit(body: bytes, path: str, knobs: Knobs) -> Ask | Refusal:
    if knobs.reject_status is not None:
        return Refusal(knobs.reject_status, "The fake engine was told to refuse this.", "rejected")
    ask = parse(body, path, knobs)
    return ask if isinstance(ask, Refusal) else admit(ask, knobs)


async def _read(receive: Receive) -> bytes | None:
    """The whole body; None when the client left before its end."""
    parts: list[bytes] = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)
    return None


async def _answer(send: Send, status: int, value: object) -> None:
    await _send(send, status, JSON_TYPE, wire.dump(value))


async def _send(send: Send, status: int, kind: tuple[bytes, bytes], body: bytes) -> None:
    headers = [kind, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
