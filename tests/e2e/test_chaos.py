"""Everything that may happen to a box, in a random order, under clients that never stop asking.

What must hold after each step and for each answer is in `Watch`. The seed is in the failure's message; MOE_TEST_SEED
repeats one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from tests.e2e.box import SEATS, Box, alive, kill9, until
from tests.e2e.client import Answer, Call, chat_body, request_bytes
from tests.e2e.conftest import MakeBox

STEPS = 14
HEARTBEAT_S, STEP_S = 1.0, 25.0
SILENCE_MAX_S = 9.0
"""A heartbeat, and twice what a machine with two busy cores may be late; a stopped gateway is killed after 6 s."""
BODIES = {
    "/v1/chat/completions": json.loads(chat_body(max_tokens=12)),
    "/v1/completions": {"prompt": "hello", "stream": True, "max_tokens": 12, "model": "fake-model"},
    "/v1/responses": {
        "input": [{"role": "user", "content": "x"}],
        "stream": True,
        "max_output_tokens": 16,
        "model": "fake-model",
    },
    "/v1/messages": {
        "messages": [{"role": "user", "content": "x"}],
        "stream": True,
        "max_tokens": 12,
        "model": "fake-model",
    },
}
ENDS = (b"[DONE]", b"message_stop", b"response.completed", b"response.incomplete")


class Timed(Call):
    """A call that knows the longest silence after its head."""

    silence_s: float = 0.0
    last_s: float = 0.0

    def _note(self, data: bytes) -> None:
        now_s = time.monotonic()
        if self.last_s:
            self.silence_s = max(self.silence_s, now_s - self.last_s)
        self.last_s = now_s
        super()._note(data)


@dataclass
class Watch:
    """The clients, and what was wrong with any answer. `drained`, `off`: what the operator was told is so, and since
    when; None while it changes."""

    box: Box
    drained_since_s: float | None = None
    paused_since_s: float | None = None
    off_since_s: float | None = None
    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def begin(self) -> None:
        for number, seat in enumerate(SEATS):
            thread = threading.Thread(target=self._ask, args=(seat, random.Random(number)), daemon=True)
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(40)
            if thread.is_alive():
                self.faults.append("a client got no end within 40 s")

    def _ask(self, seat: str, draw: random.Random) -> None:
        while not self._over.is_set():
            path = draw.choice(list(BODIES))
            body = json.dumps(BODIES[path]).encode()
            call = Timed(self.box.port, request_bytes("POST", path, self.box.keys[seat], body), limit_s=35.0)
            try:
                answer = call.wait(38.0)
            except AssertionError as error:
                self.faults.append(f"{seat} {path}: {error}")
                call.close()
                continue
            fault = self._fault_of(seat, answer, call.silence_s)
            if fault:
                self.faults.append(f"{seat} {path}: {fault}: {answer.told()}")
            if answer.status != 200:
                time.sleep(0.2)

    def _fault_of(self, seat: str, answer: Answer, silence_s: float) -> str:
        whole = answer.clean and any(mark in answer.body for mark in ENDS)
        self.ends["served" if whole else f"{answer.status} {answer.headers.get('x-moe-reject-reason', '')}"] += 1
        if silence_s > SILENCE_MAX_S:
            return f"silent for {silence_s:.1f} s"
        if whole:
            for name, since_s in (
                ("drained", self.drained_since_s),
                ("off", self.off_since_s if seat == "h" else None),
            ):
                if since_s is not None and answer.sent_s > since_s:
                    return f"served although {name}"
            if self.paused_since_s is not None and answer.sent_s > self.paused_since_s:
                return "served although paused"
            return ""
        if answer.status == 200:  # begun, and not whole: it must not look so, however it was cut
            return "an error that looks whole" if answer.clean and answer.status == 200 else ""
        if answer.status in (429, 502, 503):
            retry_s = int(answer.headers.get("retry-after", "0"))
            return "" if 1 <= retry_s <= 59 else f"comes back after {retry_s} s"
        if answer.status == 403:
            return "" if seat == "h" else "turned away"
        return "" if answer.status == 0 else "an odd status"


@dataclass
class Chaos:
    """The steps; each returns when what it did is known to be done."""

    box: Box
    watch: Watch
    draw: random.Random
    mode: str = "serving"
    off: bool = False

    def verb(self, *words: str) -> None:
        """One of the operator's."""
        status, said = self.answered("/" + "?seat=".join(words))
        assert status == 200, said

    def answered(self, path: str, method: str = "POST") -> tuple[int, Any]:
        """What the gateway says; one that is just being replaced is asked again, as a person would."""
        give_up_s = time.monotonic() + STEP_S
        while time.monotonic() < give_up_s:
            with contextlib.suppress(OSError, HTTPException):
                return self.box.control(method, path, socket_name="gateway")
            time.sleep(0.05)
        raise AssertionError(f"{path} was not answered")

    def set_mode(self, verb: str, mode: str) -> None:
        self.watch.drained_since_s = self.watch.paused_since_s = None
        self.verb(verb)
        self.mode = mode
        if mode == "drained":
            self.watch.drained_since_s = time.monotonic()
        if mode == "paused":
            self.watch.paused_since_s = time.monotonic()

    def pause(self) -> None:
        self.set_mode("pause", "paused")

    def drain(self) -> None:
        self.set_mode("drain", "drained")

    def resume(self) -> None:
        self.set_mode("resume", "serving")

    def seat_off(self) -> None:
        self.verb("disable-seat", "h")
        self.off, self.watch.off_since_s = True, time.monotonic()

    def seat_on(self) -> None:
        self.watch.off_since_s = None
        self.verb("enable-seat", "h")
        self.off = False

    def kill_gateway(self) -> None:
        before = self.gateway()
        kill9(before)
        self.other_gateway(before)

    def stop_gateway(self) -> None:
        before = self.gateway()
        os.kill(before, signal.SIGSTOP)
        self.other_gateway(before)

    def replace_gateway(self) -> None:
        before = self.gateway()
        status, said = self.box.control("POST", "/replace-gateway")
        assert status in (200, 202, 409), said
        if status == 202:
            self.other_gateway(before)

    def kill_engine(self) -> None:
        pid = self.box.state()["engine"]["pid"]
        if pid is not None and alive(pid):
            kill9(pid)

    def restart_engine(self) -> None:
        assert self.box.control("POST", "/restart")[0] in (200, 202)

    def break_seats(self) -> None:
        self.box.seats_file.write_text("[seats.a\n")
        time.sleep(1.2)  # one look of the gateway's: nothing says that it was broken already
        self.box.write_seats()

    def edit_seats(self) -> None:
        self.box.write_seats({"a": {"max_streams": self.draw.randint(1, 2)}})

    def fill_disk(self) -> None:
        """Nothing can be written where the overlay's next version would be: what is asked for is done all the same,
        and kept when there is room."""
        blocked = self.box.home / "state/overlay.json.new"
        blocked.mkdir()
        verb, mode = self.draw.choice([("pause", "paused"), ("drain", "drained"), ("resume", "serving")])
        try:
            self.set_mode(verb, mode)
        finally:
            blocked.rmdir()
        until("it is kept", lambda: self.kept()["mode"] == mode, STEP_S)

    def kept(self) -> Any:
        """The overlay on disk."""
        return json.loads((self.box.home / "state/overlay.json").read_text())

    def damage_overlay(self) -> None:
        (self.box.home / "state/overlay.json").write_text("{")
        self.kill_gateway()

    def remove_overlay(self) -> None:
        (self.box.home / "state/overlay.json").unlink()
        self.kill_gateway()

    def gateway(self) -> int:
        return int(self.box.wait_state("a gateway", lambda s: s["gateway"]["pid"], STEP_S)["gateway"]["pid"])

    def other_gateway(self, before: int) -> None:
        self.box.wait_state("another gateway", lambda s: s["gateway"]["pid"] not in (None, before), STEP_S)

    def check(self) -> None:
        """What is so now, by the gateway's own word and the disk's."""
        status, seen = self.answered("/status", "GET")
        assert status == 200
        kept = self.kept()
        assert kept["mode"] == self.mode
        assert ("h" in kept["seats"]) is self.off
        assert seen["operator"]["mode"] == self.mode, seen["operator"]
        assert seen["lanes"]["busy"] <= 4
        assert not self.watch.faults, self.watch.faults[:5]


def test_in_any_order_nothing_opens_by_itself_and_nobody_hangs(make_box: MakeBox) -> None:
    seed = int(os.environ.get("MOE_TEST_SEED") or random.SystemRandom().randrange(1 << 30))
    draw = random.Random(seed)
    box = make_box(
        tables={
            "gateway": {"heartbeat_s": HEARTBEAT_S, "early_response_s": 0.3, "drain_s": 2.0},
            "admission": {"queue_deadline_s": 15.0, "seat_grace_s": 0.2},
        },
        knobs={"time_scale": 1.5},
    )
    box.start().wait_ready()
    watch = Watch(box)
    chaos = Chaos(box, watch, draw)
    steps = [
        getattr(chaos, name)
        for name in (
            *("pause", "drain", "resume", "seat_off", "seat_on", "kill_gateway", "stop_gateway", "replace_gateway"),
            *("kill_engine", "restart_engine", "break_seats", "edit_seats"),
            *("fill_disk", "damage_overlay", "remove_overlay"),
        )
    ]
    done: list[str] = []
    chaos.resume()
    chaos.verb("disable-seat", "h")
    chaos.verb("enable-seat", "h")
    watch.begin()
    try:
        for _ in range(int(os.environ.get("MOE_TEST_STEPS") or STEPS)):
            step = draw.choice(steps)
            done.append(step.__name__)
            step()
            chaos.check()
            time.sleep(draw.random() * 1.5)
        done.append("the end")
        chaos.seat_on()
        chaos.resume()
        box.control("POST", "/start-engine")
        box.served("a", STEP_S)
        watch.end()
        until(
            "no ticket is out",
            lambda: box.control("GET", "/status", socket_name="gateway")[1]["lanes"]["busy"] == 0,
            10,
        )
        assert box.stats()["peak_sequences"] <= 4
        events = [json.loads(line)["id"] for line in box.cli("events", "--json").stdout.splitlines()]
        assert len(events) == len(set(events))
        assert not watch.faults, watch.faults[:5]
        assert watch.ends["served"]
    except BaseException as error:
        raise AssertionError(f"seed {seed}, steps {done}: {dict(watch.ends)}: {error}") from error
    finally:
        watch.end()
    print(seed, dict(watch.ends), done)
