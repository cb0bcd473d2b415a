"""What HAProxy is told: checked as text here, and with HAProxy itself in tests/e2e/test_scale.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from appliance.cli.app import app
from appliance.scale.haproxy import SILENCE_S, BoxAddress, box_address, configuration, fit_path
from gateway.settings import AdmissionSettings, LimitSettings

ADDRESSES = st.builds(
    BoxAddress,
    st.from_regex(r"10\.[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{1,2}", fullmatch=True),
    st.integers(1, 65535),
    st.just(False),
)
TWO = [BoxAddress("10.0.0.1", 8000, False), BoxAddress("10.0.0.2", 8000, False)]


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


@given(st.lists(ADDRESSES, min_size=2, max_size=6, unique_by=lambda box: box.name))
def test_a_box_keeps_its_id_wherever_it_stands_and_whoever_stands_beside_it(boxes: list[BoxAddress]) -> None:
    def ids(of: list[BoxAddress]) -> set[str]:
        return set(re.findall(r"server (\S+ \S+ id \d+) check", configuration(of, listen="127.0.0.1:1")))

    assert ids(boxes) == ids(boxes[::-1])
    assert ids(boxes[1:]) < ids(boxes)
    assert len(ids(boxes)) == len(boxes)
    assert all(0 < box.id < 2**31 for box in boxes)


def test_what_was_sent_is_never_sent_again() -> None:
    text = lines(configuration(TWO, listen="127.0.0.1:1"))
    assert [line for line in text if line.startswith("retry-on")] == ["retry-on conn-failure"]
    assert "option redispatch 1" in text
    assert "option http-server-close" in text, "a kept connection may close while a request is on its way"


def test_no_answer_is_waited_for_less_long_than_the_box_may_be_silent() -> None:
    admission, limits = AdmissionSettings(), LimitSettings()
    assert admission.queue_deadline_s + admission.max_stream_s < SILENCE_S
    assert limits.engine_silence_s < SILENCE_S
    text = configuration(TWO, listen="127.0.0.1:1")
    assert re.findall(r"timeout (?:client|server) (\d+)s", text) == [str(SILENCE_S)] * 2
    assert "compression" not in text
    assert "http-buffer-request" not in text


def test_what_is_hashed_is_a_digest_and_nothing_captures_a_header() -> None:
    text = configuration(TWO, listen="127.0.0.1:1")
    kept = [line for line in lines(text) if "set-var" in line]
    assert len(kept) == 3
    assert all("sha2(256)" in line for line in kept)
    assert "capture" not in text


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("10.0.0.1:8000", "http://"),
        ("http://10.0.0.1/v1", "no path"),
        ("http://user:secret@box.example", "http://"),
        ("", "http://"),
        ("https://10.0.0.1", "certificate"),
        ("https://[::1]:443", "certificate"),
        ("http://box'x", "http://"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        box_address(url)


def test_addresses_are_read_with_their_usual_ports() -> None:
    assert box_address("http://10.0.0.1") == BoxAddress("10.0.0.1", 80, False)
    assert box_address("https://box.example/") == BoxAddress("box.example", 443, True)
    assert box_address("http://[::1]:8000").place == "[::1]:8000"


@pytest.mark.parametrize("path", ["", "box.pem", "/a b", "/a'b", '/a"b', "/a\nbind :1", "/a#b", "/$HOME/x"])
def test_a_path_that_haproxy_would_read_otherwise_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="must begin with /"):
        fit_path(path)


def test_tls_is_verified_on_the_way_to_a_box() -> None:
    text = configuration([*TWO, BoxAddress("box.example", 443, True)], listen="127.0.0.1:1")
    secure = [line for line in lines(text) if "box.example" in line]
    assert len(secure) == 2
    assert all("verify required" in line and "verifyhost box.example" in line for line in secure)


# ------------------------------------------------------------------------------------ the verb


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["scale", "haproxy", *words])
    return done.exit_code, done.stdout, done.stderr


BOXES = ("--box", "http://10.0.0.1:8000", "--box", "http://10.0.0.2:8000")


def test_the_file_alone_is_on_standard_output_and_what_to_do_beside_it() -> None:
    code, out, err = run(*BOXES)
    assert code == 0
    assert out == configuration(TWO, listen="127.0.0.1:8080")
    assert "trusted_proxies" in err
    assert "10.0.0.1:8000, 10.0.0.2:8000 in the clear" in err


def test_with_a_certificate_it_listens_for_https() -> None:
    out = run(*BOXES, "--tls-cert", "/etc/haproxy/team.pem")[1]
    assert "bind 0.0.0.0:443 ssl crt /etc/haproxy/team.pem alpn http/1.1" in out
    assert "X-Forwarded-Proto https" in out


def test_who_listens_off_loopback_without_tls_is_told_what_that_means() -> None:
    assert "reads keys" in run(*BOXES, "--listen", "0.0.0.0:80")[2]
    assert "reads keys" not in run(*BOXES)[2]


def test_a_file_is_written_and_not_replaced_unasked(tmp_path: Path) -> None:
    out = tmp_path / "haproxy.cfg"
    assert run(*BOXES, "--out", str(out))[:2] == (0, "")
    assert out.read_text() == configuration(TWO, listen="127.0.0.1:8080")
    assert run(*BOXES, "--out", str(out))[0] == 1
    assert run(*BOXES, "--out", str(out), "--overwrite")[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (BOXES[:2], "at least two boxes"),
        ((*BOXES, *BOXES[:2]), "10.0.0.1:8000 is named twice"),
        ((*BOXES, "--listen", "8000"), "HOST:PORT"),
        ((*BOXES, "--tls-cert", "a b"), "must begin with /"),
        (("--box", "x", *BOXES), "http://"),
    ],
)
def test_wrong_options_are_refused_with_what_they_must_be(words: tuple[str, ...], said: str) -> None:
    code, _, err = run(*words)
    assert code == 2
    assert said in " ".join(re.sub(r"[│╭╮╰╯─]", " ", err).split())
