"""gateway/prewarm/queue.py: what is read next, once each, and when it is given up."""

from __future__ import annotations

from gateway.prewarm.queue import CUTS_MAX, NO_ROOM, NO_SEQUENCE, TRIES_MAX, Item, Kind, Queue

PATH = "/v1/chat/completions"


def run(key: str, size_bytes: int = 40, seat: str = "a") -> Item:
    return Item(Kind.RUN, key, seat, PATH, size_bytes)


def prefix(name: str, body: bytes = b"{}") -> Item:
    return Item(Kind.PREFIX, name, "", PATH, len(body), body)


def all_of(queue: Queue) -> list[str]:
    """Read everything; the keys in order."""
    read = []
    while (item := queue.next()) is not None:
        read.append(item.key)
        queue.begins(item)
        queue.read(item, item.size_bytes // 4, 0.5)
    return read


def test_runs_are_read_before_named_prefixes_each_once() -> None:
    queue = Queue()
    queue.begin([run("late"), run("early")], [prefix("docs")])
    assert queue.state.of == 3
    assert all_of(queue) == ["late", "early", "docs"]
    state = queue.state
    assert (state.done, state.given_up, state.now, state.tokens, state.seconds) == (3, 0, "", 20, 1.5)


def test_heads_are_read_up_to_what_the_engine_can_hold() -> None:
    queue = Queue(room_tokens=250)
    queue.begin([run("one", 400), run("two", 400), run("three", 400)], [prefix("docs")])
    assert all_of(queue) == ["one", "two", "docs"]
    assert (queue.state.done, queue.state.given_up) == (3, 1)
    assert queue.state.last_error == f"a conversation of a: {NO_ROOM}"


def test_the_first_head_is_read_whatever_is_known_of_the_room() -> None:
    queue = Queue(room_tokens=10)
    queue.begin([run("one", 400), run("two", 400)], [])
    assert all_of(queue) == ["one"]


def test_an_engine_with_sequences_gets_no_more_than_it_has() -> None:
    queue = Queue(sequences=4)
    left_out = queue.begin([run("1"), run("2"), run("3")], [prefix("docs"), prefix("more")])
    assert [item.key for item in left_out] == ["more"]
    assert all_of(queue) == ["1", "2", "3", "docs"]
    assert (queue.state.of, queue.state.done, queue.state.given_up) == (5, 4, 1)
    assert queue.state.last_error == f"more: {NO_SEQUENCE}"
    full = Queue(sequences=2)
    assert len(full.begin([run("1"), run("2"), run("3")], [prefix("docs")])) == 2
    assert all_of(full) == ["1", "2"]


def test_a_run_whose_turn_was_served_is_not_read() -> None:
    queue = Queue()
    queue.begin([run("one"), run("two")], [])
    queue.served("one")
    queue.served("unknown")
    assert all_of(queue) == ["two"]
    assert queue.state.done == 2


def test_what_is_cut_stays_first_and_is_given_up_in_the_end() -> None:
    queue = Queue()
    queue.begin([run("one"), run("two")], [])
    item = queue.next()
    assert item is not None
    assert queue.is_new(item)
    for number in range(1, CUTS_MAX):
        assert queue.cut(item), number
        assert queue.next() is item
        assert not queue.is_new(item)
    assert not queue.cut(item)
    assert all_of(queue) == ["two"]
    assert (queue.state.cut, queue.state.given_up, queue.state.done) == (CUTS_MAX, 1, 1)


def test_what_fails_is_tried_again_behind_the_others_and_given_up() -> None:
    queue = Queue()
    queue.begin([], [prefix("bad"), prefix("good")])
    bad = queue.next()
    assert bad is not None
    assert queue.failed(bad, "it is busy", for_good=False)
    good = queue.next()
    assert good is not None
    assert good.key == "good"
    queue.read(good, 1, 0.1)
    for _ in range(TRIES_MAX - 2):
        assert queue.failed(bad, "it is busy", for_good=False)
    assert not queue.failed(bad, "it is busy", for_good=False)
    assert queue.next() is None
    assert (queue.state.given_up, queue.state.last_error) == (1, "bad: it is busy")


def test_what_the_engine_refuses_is_not_tried_again() -> None:
    queue = Queue()
    queue.begin([run("one", seat="ana")], [])
    item = queue.next()
    assert item is not None
    assert not queue.failed(item, "too long", for_good=True)
    assert queue.state.last_error == "a conversation of ana: too long"


def test_a_reload_reads_what_is_new_or_has_changed() -> None:
    queue = Queue()
    queue.begin([], [prefix("old"), prefix("same")])
    assert all_of(queue) == ["old", "same"]
    queue.add([prefix("old", b'{"a":1}'), prefix("same"), prefix("new")])
    assert queue.state.of == 4
    assert all_of(queue) == ["old", "new"]


def test_a_reload_replaces_what_still_waits() -> None:
    queue = Queue()
    queue.begin([], [prefix("docs")])
    newer = prefix("docs", b'{"a":1}')
    queue.add([newer])
    assert queue.next() == newer
    assert queue.state.of == 1


def test_an_engine_with_sequences_gets_no_more_by_a_reload() -> None:
    queue = Queue(sequences=1)
    queue.begin([], [prefix("docs")])
    told = [[item.key for item in queue.add([prefix("docs"), prefix("more")])] for _ in range(2)]
    assert told == [["more"], []], "it is told once"
    assert all_of(queue) == ["docs"]
    assert (queue.state.of, queue.state.done, queue.state.given_up) == (2, 1, 1)


def test_the_named_prefixes_that_are_left_are_counted() -> None:
    queue = Queue()
    queue.begin([run("one")], [prefix("docs"), prefix("more")])
    assert queue.prefixes_left == 2


def test_what_is_read_now_is_told_without_its_text() -> None:
    item = prefix("docs", b"secret")
    queue = Queue()
    queue.begin([], [item])
    queue.begins(item)
    assert queue.state.now == "docs"
    assert "secret" not in repr(item)
