"""What leaves the box in a bundle: no secret of any make, no name, and the rest as it was."""

from __future__ import annotations

import base64
import json
import secrets
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.printable import quoted
from appliance.redact import LEFT_OUT, MASK, SECRET_MIN, Redactor
from gateway.keys import ADMIN_PREFIX, SEAT_PREFIX, digest_of, new_key
from gateway.pages.sessions import csrf, issue
from gateway.seats import Account, AdminBook, AdminName

KEY = new_key(SEAT_PREFIX, bytes(range(32)))
ADMIN = new_key(ADMIN_PREFIX, bytes(range(32, 64)))
BOOK = AdminBook({AdminName("root"): Account(name="root", digest=digest_of(ADMIN))})
COOKIE = issue(b"s" * 32, AdminName("root"), BOOK, 1_800_000_000.0)
HUB = "hf_" + "A1b2" * 8


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"key {KEY} was shown", KEY),
        (f"token={ADMIN}", ADMIN),
        (f'digest = "{digest_of(KEY)}"', digest_of(KEY).removeprefix("sha256:")),
        (f"cookie: moe_admin={COOKIE}", COOKIE),
        ("Authorization: Bearer abc.def-123", "abc.def-123"),
        ("authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        (f"HF_TOKEN={HUB}", HUB),
        (f"downloading with {HUB}.", HUB),
        ("OPENAI_API_KEY=abcd1234efgh", "abcd1234efgh"),
        ("--api-key abcd1234efgh --port 1", "abcd1234efgh"),
        ("--api-key=abcd1234efgh", "abcd1234efgh"),
        ('{"api_key": "abcd1234efgh"}', "abcd1234efgh"),
        ("['serve', '--hub-token', 'abcd1234efgh']", "abcd1234efgh"),
        ("'password': 'hunter2222'", "hunter2222"),
        ("http://user:hunter2@127.0.0.1:1/x", "hunter2"),
        ("http://127.0.0.1/f?X-Amz-Signature=abcdef123&n=1", "abcdef123"),
        ("http://127.0.0.1/f?token=abcdef123", "abcdef123"),
        ("sk-proj-abcdefghijklmnop", "sk-proj-abcdefghijklmnop"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0", "eyJzdWIiOiIx"),
        ("/home/carla/vllm/bin", "carla"),
    ],
)
def test_what_looks_like_a_secret_goes(text: str, secret: str) -> None:
    shown = Redactor().text(text)
    assert secret not in shown
    assert shown != text


@pytest.mark.parametrize(
    "text",
    [
        "gpt-oss-120b loads 61 GiB, moe-appliance.service is active",
        '{"max_tokens": 400, "tokens_out": 12, "key_file": null}',
        "MemTotal:       131000 kB",
        "the token count of a seat; see moe-appliance status",
        "http://127.0.0.1:8000/v1/models?after=5",
        "/var/lib/moe-appliance/ledger.db",
        "v1.2.3 and 10.0.0.5",
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert Redactor(seats=["ana"]).text(text) == text


@given(st.text(min_size=SECRET_MIN, max_size=40), st.text(max_size=20), st.text(max_size=20))
def test_a_secret_that_is_known_goes_in_every_usual_spelling(secret: str, before: str, behind: str) -> None:
    redactor = Redactor([secret])
    raw = secret.encode("utf-8", "surrogatepass")
    for form in (
        secret,
        quote(secret, safe="", errors="replace"),
        raw.hex(),
        base64.b64encode(raw).decode().rstrip("="),
    ):
        assert form not in redactor.text(f"{before} {form} {behind}").replace(MASK, "")


def test_names_become_numbers_where_a_field_holds_them_and_as_words_of_text() -> None:
    redactor = Redactor(seats=["ana", "ben", "x"], admins=["carla"])
    value = {
        "seats": [{"name": "ana", "state": "active"}, {"name": "x"}],
        "events": [{"who": "carla", "text": "seat ana is switched off by carla; banana stays"}],
        "by_seat": {"ben": 3},
        "x": "x marks the spot",
    }
    assert redactor.value(value) == {
        "seats": [{"name": "seat-1", "state": "active"}, {"name": "seat-3"}],
        "events": [{"who": "admin-1", "text": "seat seat-1 is switched off by admin-1; banana stays"}],
        "by_seat": {"seat-2": 3},
        "seat-3": "x marks the spot",
    }


def test_values_under_a_secrets_key_and_in_an_environment_go_whole() -> None:
    value = {"env": {"PATH": "/bin", "ANY": "word"}, "api_key": "a", "digest": "b", "key_file": "/run/k", "n": 5}
    shown = Redactor().value(value)
    assert shown == {
        "env": {"PATH": MASK, "ANY": MASK},
        "api_key": MASK,
        "digest": MASK,
        "key_file": "/run/k",
        "n": 5,
    }


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_any_json_goes_through_and_stays_json(value: object) -> None:
    json.dumps(Redactor(["secret-thing"], ["ana"]).value(value))


def test_in_a_command_what_stands_behind_a_secrets_flag_goes() -> None:
    command = ["serve", "--api-key", "abcd", "--key-file", "/run/k", "--port", "1"]
    assert Redactor().value(command) == ["serve", "--api-key", MASK, "--key-file", "/run/k", "--port", "1"]


def test_a_csrf_value_beside_its_name_goes() -> None:
    value = csrf(b"s" * 32, COOKIE, "drain")
    assert value not in Redactor().text(f"token: {value}")


def test_a_long_log_is_redacted_in_time() -> None:
    line = f"{secrets.token_hex(8)} request.done seat=ana token={KEY} " + "a" * 200 + "\n"
    shown = Redactor(seats=["ana"]).text(line * 2000)
    assert KEY not in shown


def test_whoever_acted_becomes_a_number_also_in_free_text() -> None:
    redactor = Redactor(admins=["boss"], persons=["jane.doe", "boss"])
    assert redactor.value({"by": "jane.doe", "text": "Paused by jane.doe 2 s ago, by boss"}) == {
        "by": "person-2",
        "text": "Paused by person-2 2 s ago, by admin-1",
    }


def test_an_engines_last_words_go_from_what_quotes_them_unless_they_are_asked_for() -> None:
    title = f"The engine ended with exit code 1: {quoted('prompt: “my diary”')}."
    as_json = json.dumps({"title": title, "id": "engine.exit_code"}, indent=1)
    for shown in (Redactor().text(title), Redactor().text(as_json), json.dumps(Redactor().value({"title": title}))):
        assert "diary" not in shown
        assert "ended with exit code 1: [removed]" in shown
    assert json.loads(json.dumps(Redactor().value({"title": title})))["title"].endswith("[removed].")
    assert Redactor(last_words=True).text(title) == title
    quiet = "The engine ended with exit code 1, and it logged nothing."
    assert Redactor().text(quiet) == quiet


def test_lines_of_an_engines_log_go_wherever_a_field_holds_them_unless_they_are_asked_for() -> None:
    value = {
        "cause": {"id": "engine.x", "evidence": "prompt: my diary"},
        "reverted": {"cause": {"evidence": ""}},
        "log_tail": ["prompt:", "my diary"],
    }
    assert Redactor().value(value) == {
        "cause": {"id": "engine.x", "evidence": LEFT_OUT},
        "reverted": {"cause": {"evidence": ""}},
        "log_tail": LEFT_OUT,
    }
    assert Redactor(last_words=True).value(value) == value
