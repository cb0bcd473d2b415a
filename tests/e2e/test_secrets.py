"""No key, token or text of a prompt anywhere but in its own file; and what another user of the machine can reach."""

from __future__ import annotations

import base64
import json
import os
import secrets
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from gateway.keys import ADMIN_PREFIX, new_key
from tests.e2e.box import Box, kill9, until
from tests.e2e.client import chat_body, request_bytes

PROMPT = "Zwiebelkuchenrezept"
KEY_FILES = {"cookie.secret": 0o600, "engine-": 0o600}
"""Files that may hold a secret, by the beginning of their name: their mode."""
Known = dict[str, str | bytes]
"""What must be nowhere, by what it is."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Box, Known]]:
    """A box after a day of all sorts, and every secret of that day by what it is."""
    box = Box(tmp_path_factory.mktemp("secrets")).start().wait_ready()
    known: Known = {f"key of {name}": key for name, key in box.keys.items()}
    known |= {"admin token": box.admin_key, "mistyped token": new_key(ADMIN_PREFIX, secrets.token_bytes(32))}
    known |= {"engine key": Path(box.state()["engine"]["key_file"]).read_text().strip(), "prompt": PROMPT}
    known["cookie"] = _admins_day(box, str(known["mistyped token"]))
    known |= signing(box)
    _developers_day(box)
    kill9(box.engine_pid)
    box.wait_state("the engine is back", lambda state: state["engine"]["restarts"] > 0, 20.0)
    box.wait_ready()
    known["second engine key"] = Path(box.state()["engine"]["key_file"]).read_text().strip()
    assert box.chat("a", text=PROMPT).done
    until("nothing is read ahead any more", lambda: _read_ahead(box) or None, 30.0)
    yield box, known
    fault = box.close()
    assert not fault, fault


def _read_ahead(box: Box) -> bool:
    """Whether all conversations are in the cache of the new engine: no request comes by itself from then on."""
    row = json.loads(box.get("/admin/status.json", box.admin_key).body)["prewarm"]
    return row is None or (not row["left"] and not row["now"])


def signing(box: Box) -> Known:
    """What signs the cookies: raw bytes, and as a person or a program would write them."""
    secret = (box.home / "state/cookie.secret").read_bytes()
    assert len(secret) >= 32
    plain, urls = base64.b64encode(secret).decode(), base64.urlsafe_b64encode(secret).decode()
    texts = {
        "hex": secret.hex(),
        "HEX": secret.hex().upper(),
        "base64": plain.rstrip("="),
        "base64url": urls.rstrip("="),
    }
    return {"cookie secret": secret} | {f"cookie secret in {form}": text for form, text in texts.items()}


def _admins_day(box: Box, mistyped: str) -> str:
    """Logins that succeed and fail, pages, a token in an address; the session's cookie."""
    cookie = ""
    for token in (mistyped, box.keys["a"], box.admin_key):
        form = urlencode({"token": token}).encode()
        request = request_bytes("POST", "/admin/login", None, form)
        typed = request.replace(b"application/json", b"application/x-www-form-urlencoded")
        cookie = box.call(typed).wait().headers.get("set-cookie", "").partition(";")[0]
    assert cookie
    for path in ("/admin", "/admin/status.json", f"/admin?token={box.admin_key}", f"/{box.admin_key}"):
        box.get(path, box.admin_key)
        box.get(path, mistyped)
    return cookie.partition("=")[2]


def _developers_day(box: Box) -> None:
    """Chats, and keys where they do not belong."""
    key = box.keys["a"]
    for text in (PROMPT, f"{PROMPT} {key}"):
        assert box.chat("a", text=text).done
        assert box.chat("b", text=text, stream=False).status == 200
    good = json.loads(chat_body(PROMPT))
    odd = {"user": key, "api_key": key, "metadata": {"key": key}, "model": "fake-model"}
    broken = [
        json.dumps(good | odd),
        json.dumps(good | {"model": key}),
        json.dumps(good | {"model": PROMPT}),
        json.dumps(good | {"messages": PROMPT}),
        json.dumps(good | {"messages": [{"role": PROMPT, "content": key}]}),
        json.dumps(good | {"n": 2, PROMPT: key}),
        f'{{"messages": "{PROMPT} {key}',
        f"{PROMPT} {key}",
    ]
    where = ("/v1/chat/completions", "/v1/messages", "/v1/responses", f"/v1/chat/completions?key={key}", f"/v1/{key}")
    for path in where:
        for body in broken:
            box.call(request_bytes("POST", path, key, body.encode())).wait()
            box.call(request_bytes("POST", path, None, body.encode())).wait()
    for line in (
        "Authorization: Basic",
        "Authorization:",
        "X-Request-Id:",
        "User-Agent:",
        "X-Foo:",
        "Cookie: key=",
        "Host:",
    ):
        request = request_bytes("POST", "/v1/chat/completions", box.keys["b"], chat_body(PROMPT))
        box.call(request.replace(b"\r\n\r\n", f"\r\n{line} {key}\r\n\r\n".encode(), 1)).wait()
    for path in (f"/v1/models/{key}", f"/{key}", f"/v1/models?key={key}"):
        box.get(path, key)
        box.get(path, key[:-1])
    box.post("c", max_tokens=3000, text=PROMPT).wait_bytes(b'"content"')


def leaks(known: Known, text: bytes) -> list[str]:
    """What of `known` is in `text`, plain or in base64."""
    values = {name: value.encode() if isinstance(value, str) else value for name, value in known.items()}
    forms = {name: (plain, base64.b64encode(plain).rstrip(b"=")) for name, plain in values.items()}
    return [name for name, (plain, packed) in forms.items() if plain in text or packed in text]


def leaks_of(known: Known, archive: Path) -> dict[str, list[str]]:
    """Each file of a .tar.gz, at least one: what of `known` is in it, or in its name."""
    with tarfile.open(archive) as opened:
        files = {member.name: opened.extractfile(member) for member in opened if member.isfile()}
        assert files
        return {name: leaks(known, name.encode() + b"\n" + file.read()) for name, file in files.items() if file}


def test_neither_log_nor_files_hold_a_secret(used: tuple[Box, Known]) -> None:
    box, known = used
    assert leaks(known, box.log.encode()) == []
    files = [path for top in (box.home, box.runtime) for path in top.rglob("*") if path.is_file()]
    assert len(files) > 6
    for path in files:
        if not path.name.startswith(tuple(KEY_FILES)):
            assert leaks(known, path.read_bytes()) == [], path


def test_neither_arguments_nor_environment_of_a_process_hold_a_secret(used: tuple[Box, Known]) -> None:
    box, known = used
    pids = box.left()
    assert len(pids) >= 4, "daemon, gateway, guard, engine"
    for pid in pids:
        for name in ("cmdline", "environ", "comm", "mountinfo"):
            assert leaks(known, Path(f"/proc/{pid}/{name}").read_bytes()) == [], f"{pid} {name}"


def test_neither_page_nor_figures_hold_a_secret(used: tuple[Box, Known]) -> None:
    box, known = used
    for path in ("/admin", "/admin/fragment", "/admin/status.json", "/metrics", "/v1/models", "/health", "/ready"):
        answer = box.get(path, box.keys["a"] if path.startswith("/v1") else box.admin_key)
        assert answer.status == 200, path
        assert leaks(known, answer.raw) == [], path
    for words in (["status"], ["status", "--json"], ["seats", "list"], ["admins", "list"]):
        said = box.cli(*words)
        assert leaks(known, (said.stdout + said.stderr).encode()) == [], words
    assert leaks(known, json.dumps(box.state()).encode()) == []
    assert leaks(known, json.dumps(box.control("GET", "/status", socket_name="gateway")[1]).encode()) == []


@pytest.mark.parametrize("more", [[], ["--engine-log"]], ids=["plain", "with the engine's log"])
def test_a_bundle_for_whoever_helps_holds_neither_secrets_nor_names(
    used: tuple[Box, Known], tmp_path: Path, more: list[str]
) -> None:
    box, known = used
    bundle = tmp_path / "bundle.tar.gz"
    said = box.cli("doctor", "--out", str(bundle), *more)
    assert leaks(known, (said.stdout + said.stderr).encode()) == []
    found = leaks_of(known, bundle)
    assert len(found) > 3
    assert not any(found.values()), found
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600


def test_a_backup_holds_digests_and_no_secret(used: tuple[Box, Known], tmp_path: Path) -> None:
    box, known = used
    archive = tmp_path / "backup.tar.gz"
    said = box.cli("backup", str(archive))
    assert said.returncode == 0, said.stderr
    assert leaks(known, (said.stdout + said.stderr).encode()) == []
    found = leaks_of(known, archive)
    assert {"config/seats.toml", "config/admins.toml", "state/ledger.db"} <= found.keys()
    assert not any(found.values()), found


def test_the_secret_of_the_cookies_is_found_in_any_form(used: tuple[Box, Known]) -> None:
    box, known = used
    secret = (box.home / "state/cookie.secret").read_bytes()
    for form in (secret, secret.hex().encode(), base64.b64encode(secret), base64.urlsafe_b64encode(secret)):
        assert any(name.startswith("cookie secret") for name in leaks(known, b"x" + form + b"x"))


def test_what_the_box_writes_is_for_nobody_else(used: tuple[Box, Known]) -> None:
    box, _ = used
    made = [path for top in (box.home / "state", box.runtime) for path in top.rglob("*")]
    left_out = {
        "seats.toml",
        "admins.toml",
        "gateway.record",
        "engine.record",
    }  # the test's; pids, for whoever may enter
    assert stat.S_IMODE(box.runtime.stat().st_mode) & 0o027 == 0
    for path in made:
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_socket():
            assert mode == 0o660, path
        elif path.is_dir():
            assert mode & 0o027 == 0, (path, oct(mode))
        elif path.name not in left_out:
            assert mode & 0o137 == 0, (path, oct(mode))
        for start, wanted in KEY_FILES.items():
            assert not path.name.startswith(start) or mode == wanted, path


# Another user of the machine

REACH = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
what, *rest = sys.argv[1:]
try:
    if what == "read":
        print(open(rest[0], "rb").read(1))
    elif what == "list":
        print(os.listdir(rest[0]))
    elif what == "unix":
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(5)
        sock.connect(rest[0])
        sock.sendall(b"GET /state HTTP/1.1\\r\\nhost: box\\r\\n\\r\\n")
        print(sock.recv(100))
    else:
        sock = socket.socket()
        sock.settimeout(5)
        sock.connect((rest[0], int(rest[1])))
        sock.sendall(f"{what} HTTP/1.1\\r\\nhost: box\\r\\ncontent-length: 2\\r\\n{rest[2]}\\r\\n{{}}".encode())
        print(sock.recv(100))
except OSError as error:
    print(type(error).__name__)
"""


def nobody(*words: str) -> str:
    """What a process of user and group 65534 gets."""
    argv = [sys.executable, "-I", "-S", "-c", REACH, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=15, check=True).stdout.strip()


@as_root
def test_another_user_reaches_neither_sockets_nor_key_files(used: tuple[Box, Known]) -> None:
    box, _ = used
    engine_key = box.state()["engine"]["key_file"]
    files = (engine_key, str(box.runtime / "gateway.json"), str(box.home / "state/cookie.secret"))
    for opened in (0o750, 0o755):  # what the folder's mode does, and then those of what is in it
        box.runtime.chmod(opened)
        for name in ("control.sock", "gateway.sock"):
            assert nobody("unix", str(box.runtime / name)) == "PermissionError"
        for path in files:
            assert nobody("read", path) == "PermissionError", path
    box.runtime.chmod(0o750)
    assert nobody("list", str(box.runtime)) == "PermissionError"
    assert box.get("/ready").status == 200


@as_root
@pytest.mark.parametrize(
    "claim", ["", "Authorization: Bearer \r\n", "X-Api-Key: moe\r\n", "X-Forwarded-For: 127.0.0.1\r\n"]
)
def test_the_engines_port_is_closed_without_its_key(used: tuple[Box, Known], claim: str) -> None:
    box, _ = used
    engine = urlsplit(box.state()["engine"]["url"])
    assert engine.hostname == "127.0.0.1"
    before = box.stats()["requests"]
    for line in ("POST /v1/chat/completions", "POST /v1/messages", "GET /v1/models", "GET /slots"):
        got = nobody(line, "127.0.0.1", str(engine.port), claim)
        assert got.startswith("b'HTTP/1.1 401 "), (line, got)
    assert box.stats()["requests"] == before
