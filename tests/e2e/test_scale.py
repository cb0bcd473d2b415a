"""Two boxes behind the HAProxy that `moe-appliance scale haproxy` makes: affinity, drains, deaths, silence, secrets."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from gateway.keys import SEAT_PREFIX, new_key
from tests.e2e.balancer import Balancer, checked, generated
from tests.e2e.box import SEATS, Box, until
from tests.e2e.client import Answer, Call, chat_body
from tests.tls.proxies import make_certificate

QUICK = {"time_scale": 0.05}
SLOW = {"ms_per_token": (20.0,) * 8}
MORE_SEATS = 12
"""With them there are 20: that all of them fall to one box happens once in half a million runs."""
DIED = 502
"""What HAProxy answers for a box that ended before it said anything."""


class Pair:
    """Two boxes with the same seats, and their balancer. Each request has an id of its own."""

    def __init__(self, boxes: tuple[Box, Box], balancer: Balancer) -> None:
        self.boxes = boxes
        self.balancer = balancer
        self.keys = boxes[0].keys
        self._numbers = count()

    def call(
        self, key: str, *, header: str = "authorization", stream: bool = True, tokens: int = 2, text: str = "hello"
    ) -> tuple[str, Call]:
        """(id, call) of a chat completion."""
        id = f"scale-{next(self._numbers)}"
        value = f"Bearer {key}" if header == "authorization" else key
        body = chat_body(text, stream=stream, max_tokens=tokens)
        lines = ["POST /v1/chat/completions HTTP/1.1", "host: team", "connection: close", f"x-request-id: {id}"]
        lines += [f"{header}: {value}", "content-type: application/json", f"content-length: {len(body)}", "", ""]
        return id, self.balancer.call("\r\n".join(lines).encode() + body)

    def ask(self, key: str, header: str = "authorization") -> tuple[str, Answer]:
        """The same to its end."""
        id, call = self.call(key, header=header)
        return id, call.wait()

    def ids(self, box: Box) -> Counter[str]:
        """How often each request reached the engine of that box."""
        return Counter(row["id"] for row in box.stats()["log"] if row["id"].startswith("scale-"))

    def at(self, id: str) -> Box:
        """The one box whose engine saw it, once."""
        found = [(box, times) for box in self.boxes if (times := self.ids(box)[id])]
        assert [times for _, times in found] == [1], f"{id} was seen by {len(found)} boxes"
        return found[0][0]

    def other(self, box: Box) -> Box:
        """Its neighbour."""
        return self.boxes[1] if box is self.boxes[0] else self.boxes[0]

    def homes(self) -> dict[str, Box]:
        """Seat -> the box that serves it now."""
        asked = {seat: self.ask(key) for seat, key in self.keys.items()}
        assert [answer.told() for _, answer in asked.values() if answer.status != 200 or not answer.done] == []
        return {seat: self.at(id) for seat, (id, _) in asked.items()}

    def a_seat_of(self, homes: dict[str, Box], box: Box) -> str:
        """The key of one that lives there."""
        return next(self.keys[seat] for seat, home in homes.items() if home is box)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both serve, and are in the pool."""
    behind = {"MOE_APPLIANCE_TRUSTED_PROXIES": '["127.0.0.1"]', "MOE_APPLIANCE_PUBLIC_URL": "http://team.example"}
    limits = {"gateway": {"heartbeat_s": 0.2, "early_response_s": 0.2}}
    first, second = (
        Box(tmp_path_factory.mktemp(name), knobs=QUICK, environ=behind, tables=limits) for name in ("first", "second")
    )
    first.keys |= {f"more{number}": new_key(SEAT_PREFIX, secrets.token_bytes(32)) for number in range(MORE_SEATS)}
    second.keys = first.keys
    for box in (first, second):
        box.write_seats()
        box.start()
    with contextlib.ExitStack() as ends:
        for box in (first, second):
            ends.callback(box.close)
            box.wait_ready()
        balancer = Balancer((first, second))
        ends.callback(balancer.close)
        yield Pair((first, second), balancer)


def refuses(port: int) -> bool:
    """Whether nobody listens. A process that is being killed keeps its sockets longer than its memory."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


def set_knobs(box: Box, **knobs: object) -> None:
    """For requests that come from now on."""
    box.engine("POST", "/_fake/knobs", knobs)


def test_haproxy_takes_the_configuration_with_and_without_tls(tmp_path: Path) -> None:
    urls = ["http://127.0.0.1:8000", "http://[::1]:8000", "https://localhost"]
    pem = str(make_certificate(tmp_path).pem)
    for options in ([], ["--listen", "0.0.0.0:443", "--tls-cert", pem]):
        text = generated(urls, *options).replace("/run/haproxy/", f"{tmp_path}/")
        found = checked(tmp_path, text)
        assert found.returncode == 0, found.stderr
        assert "warning" not in found.stderr.lower()


def test_a_seat_meets_the_same_box_whichever_header_has_its_key(pair: Pair) -> None:
    homes = pair.homes()
    assert pair.homes() == homes
    for seat in SEATS[:3]:
        id, answer = pair.ask(pair.keys[seat], "x-api-key")
        assert answer.status == 200
        assert pair.at(id) is homes[seat]


def test_seats_are_spread_over_the_boxes(pair: Pair) -> None:
    """By keys that no box knows, many of them: whose is which is chance, and 401 tells as well."""
    keys = [new_key(SEAT_PREFIX, secrets.token_bytes(32)) for _ in range(200)]
    before = len(pair.balancer.log)
    answers = [pair.ask(key)[1] for key in keys]
    assert {answer.status for answer in answers} == {401}
    until("all are logged", lambda: len(served_by(pair, before)) == len(keys), 10)
    shares = Counter(served_by(pair, before))
    assert len(shares) == 2
    assert all(0.25 <= times / len(keys) <= 0.75 for times in shares.values()), shares


def served_by(pair: Pair, since: int) -> list[str]:
    """The boxes of all requests that HAProxy logged."""
    return re.findall(r" team boxes/(\S+) ", pair.balancer.log[since:])


def test_a_drained_box_ends_its_streams_gives_its_seats_away_and_gets_them_back(pair: Pair) -> None:
    homes = pair.homes()
    box = pair.boxes[0]
    key = pair.a_seat_of(homes, box)
    set_knobs(box, **SLOW, time_scale=1.0)
    long, running = pair.call(key, tokens=200, text="long")
    running.wait_bytes(b'"content"')
    assert box.cli("drain").returncode == 0

    asked = []
    while pair.balancer.is_up(box):
        asked.append(pair.ask(key))
    refused = [(id, answer) for id, answer in asked if answer.status != 200]
    assert {answer.status for _, answer in refused} <= {503}
    assert all(int(answer.headers["retry-after"]) > 0 for _, answer in refused)
    seen = pair.ids(box) + pair.ids(pair.other(box))
    assert [seen[id] for id, _ in refused] == [0] * len(refused), "who was refused may come again"

    assert set(pair.homes().values()) == {pair.other(box)}
    assert running.wait().done
    assert pair.at(long) is box

    assert box.cli("resume").returncode == 0
    pair.balancer.wait_up(box, True)
    set_knobs(box, **QUICK)
    assert pair.homes() == homes


def test_with_no_box_that_serves_the_refusal_is_the_boxes_own(pair: Pair) -> None:
    for box in pair.boxes:
        assert box.cli("drain").returncode == 0
    for box in pair.boxes:
        pair.balancer.wait_up(box, False)
    through, direct = pair.ask(pair.keys["a"])[1], pair.boxes[0].chat("a")
    assert (through.status, through.json) == (direct.status, direct.json)
    assert through.headers["retry-after"] == direct.headers["retry-after"]
    for box in pair.boxes:
        assert box.cli("resume").returncode == 0
        pair.balancer.wait_up(box, True)


def test_a_box_that_dies_cuts_its_own_streams_only_and_nothing_is_sent_twice(pair: Pair) -> None:
    homes = pair.homes()
    box, neighbour = pair.boxes
    key = pair.a_seat_of(homes, box)
    for one in pair.boxes:
        set_knobs(one, **SLOW, time_scale=1.0)
    doomed, cut = pair.call(key, tokens=3000, text="doomed")
    spared, whole = pair.call(pair.a_seat_of(homes, neighbour), tokens=200, text="spared")
    silent, unanswered = pair.call(key, stream=False, tokens=3000, text="silent")
    for call in (cut, whole):
        call.wait_bytes(b'"content"')
    until("the third runs too", lambda: pair.ids(box)[silent] == 1, 5)

    for pid in box.left():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until("nobody listens there", lambda: refuses(box.port), 10)
    moved = [pair.ask(pair.keys[seat]) for seat in homes for _ in range(3)]

    assert cut.wait().cut
    assert (unanswered.wait().status, unanswered.answer.json["error"]["code"]) == (DIED, "bad_gateway")
    assert whole.wait().done
    assert {answer.status for _, answer in moved} == {200}, "who is refused a connection goes to the other box"
    seen = pair.ids(neighbour)
    assert [seen[id] for id, _ in moved] == [1] * len(moved)
    assert (seen[spared], seen[doomed], seen[silent]) == (1, 0, 0)

    pair.balancer.wait_up(box, False)
    assert box.process is not None
    box.process.wait(10)
    box.start().wait_ready()
    pair.balancer.wait_up(box, True)
    set_knobs(neighbour, **QUICK)
    assert pair.homes() == homes


def test_silence_longer_than_any_other_limit_cuts_nothing(pair: Pair) -> None:
    """Of an answer that is not streamed; its only limits are those of 2000 s."""
    for box in pair.boxes:
        set_knobs(box, silent_s=2.5)
    calls = [pair.call(pair.keys[seat], stream=stream)[1] for seat, stream in (("a", False), ("b", True), ("c", True))]
    answers = [call.wait() for call in calls]
    for box in pair.boxes:
        set_knobs(box, silent_s=0.0)
    assert [(answer.status, answer.clean) for answer in answers] == [(200, True)] * 3


def test_heartbeats_keep_a_waiting_stream_through_limits_shorter_than_its_silence(pair: Pair) -> None:
    def shorter(text: str) -> str:
        changed, times = re.subn(r"(timeout (?:client|server)) \d+s", r"\1 800ms", text)
        assert times == 2
        return changed

    for box in pair.boxes:
        set_knobs(box, silent_s=2.5)
    with contextlib.closing(Balancer(pair.boxes, shorter)) as hasty:
        there = Pair(pair.boxes, hasty)
        _, kept = there.call(pair.keys["a"])
        _, lost = there.call(pair.keys["b"], stream=False)
        assert kept.wait().done
        assert lost.wait().status == 504
    for box in pair.boxes:
        set_knobs(box, silent_s=0.0)


@pytest.mark.parametrize("path", ["/admin", "/admin/login", "/%61dmin", "/seat", "/metrics"])
def test_what_a_box_says_of_itself_is_not_balanced(pair: Pair, path: str) -> None:
    answer = pair.balancer.call(f"GET {path} HTTP/1.1\r\nhost: team\r\nconnection: close\r\n\r\n".encode()).wait()
    assert answer.status == 404
    assert b"the box's own address" in answer.body


def test_no_key_is_in_the_log_of_haproxy(pair: Pair) -> None:
    pair.homes()
    pair.ask(pair.keys["a"], "x-api-key")
    log = pair.balancer.log
    assert "POST /v1/chat/completions" in log
    assert SEAT_PREFIX not in log.replace(str(pair.balancer.folder), "")
    assert not any(key.removeprefix(SEAT_PREFIX) in log for key in pair.keys.values())
