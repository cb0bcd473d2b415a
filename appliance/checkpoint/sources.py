"""Where a checkpoint is: a folder, a server, a repository of a hub. Touches the file system, and a hub through hub.py.

Rules:
- A token comes from the environment only: HF_TOKEN goes to the hub (HF_ENDPOINT) and to nobody else,
  MOE_CHECKPOINT_TOKEN to the server of a URL.
- A token goes over https only, or to this machine: on the way anybody could read it.
- Credentials inside a URL are refused: command lines are seen by everybody on the machine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from appliance.checkpoint.faults import plain, shown_url, typed
from appliance.errors import CheckpointError

HUB_TOKEN = "HF_TOKEN"  # noqa: S105
URL_TOKEN = "MOE_CHECKPOINT_TOKEN"  # noqa: S105
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_REVISION = re.compile(r"[\w.+/-]{1,200}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Folder:
    """On this machine. `path`: the checkpoint's folder, its index, or one file of tensors; it exists."""

    path: Path


@dataclass(frozen=True, slots=True)
class Url:
    """On an HTTP server with range requests. `url`: of the folder, of the index or of one .safetensors file."""

    url: str


@dataclass(frozen=True, slots=True)
class Hub:
    """In a repository of a hub. `repo`: ORG/NAME; `revision`: a branch, a tag or a commit, None for the default one."""

    repo: str
    revision: str | None = None


Source = Folder | Url | Hub


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a hub's listing. `size_bytes`: None when not listed; `sha256`: of its content, for files in LFS;
    `validator`: changes when the content does."""

    name: str
    size_bytes: int | None
    sha256: str | None
    validator: str | None


@dataclass(frozen=True, slots=True)
class Remote:
    """A checkpoint on a server, ready to be read.

    `origin`: for people, without credentials; `base`: URL of its folder, with the final slash; `place`: the same
    without a revision, what the cache knows it by; `query`: what every URL ends with; `file`: the one file that the
    origin names (an index or a .safetensors file), None for a folder; `files`: the listing of a hub by name, None where
    there is no listing; `revision`: the hub's commit; `token`: for `Transport`, `token_variable`: where it comes from;
    `requests`: what the listing took.
    """

    origin: str
    base: str
    place: str
    query: str = field(default="", repr=False)
    file: str | None = None
    files: Mapping[str, HubFile] | None = None
    revision: str | None = None
    token: str | None = field(default=None, repr=False)
    token_variable: str = URL_TOKEN
    requests: int = 0

    def url(self, name: str) -> str:
        """Where the file `name` (a relative path with `/`) is."""
        return f"{self.base}{quote(name, safe='/')}{self.query}"


def source_of(text: str, revision: str | None = None) -> Source:
    """What a person means by `text`: an existing path, an http(s) URL, or ORG/NAME[@REV]. Raises CheckpointError."""
    if re.match(r"https?://", text, re.IGNORECASE):
        if revision is not None:
            raise CheckpointError(f"{shown_url(text)}: --revision is for hubs", "leave --revision out")
        return _url(text)
    path, there = _path(text)
    repo, at, after = text.partition("@")
    if not there and _REPO.fullmatch(repo) and (not at or after):
        if at and revision is not None:
            raise CheckpointError(f"{plain(text)}: two revisions, {after} and {revision}", "give one of them")
        return _hub(repo, after if at else revision)
    if revision is not None:
        raise CheckpointError(f"{plain(text)}: --revision is for hubs", "leave --revision out, or give ORG/NAME")
    if not there:
        raise CheckpointError(
            f"{plain(text)}: no such file or folder, and neither a URL nor ORG/NAME",
            f"ls -ld {typed(path.parent)}   or give http(s)://... or ORG/NAME[@REV]",
        )
    return Folder(path)


def _path(text: str) -> tuple[Path, bool]:
    """The path, and whether something is there."""
    path = Path(text)
    try:
        path = path.expanduser()
        return path, path.exists()
    except RuntimeError:  # ~nobody
        return path, False
    except OSError as error:
        raise CheckpointError(
            f"{plain(text)}: {error.strerror or error}", f"ls -ld {typed(text)}   shows why"
        ) from error


def remote_of(source: Url | Hub, environ: Mapping[str, str], sleep: Callable[[float], None] = time.sleep) -> Remote:
    """The source as something to read: no request for a URL, the listing (blocking, with retries) for a hub.

    Raises CheckpointError.
    """
    if isinstance(source, Hub):
        from appliance.checkpoint.hub import listed

        return listed(source, environ, sleep)
    parts = urlsplit(source.url)
    folder, _, last = parts.path.rpartition("/")
    names_file = last.endswith((".safetensors", ".json"))
    if last.endswith(".gguf"):
        raise CheckpointError(
            f"{shown_url(source.url)}: GGUF files are read from this machine only", "download the file, then show it"
        )
    path = f"{folder}/" if names_file or not last else f"{folder}/{last}/"
    base = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
    return Remote(
        origin=shown_url(source.url),
        base=base,
        place=base,
        query=f"?{parts.query}" if parts.query else "",
        file=unquote(last) if names_file else None,
        token=_url_token(source.url, environ),
        token_variable=URL_TOKEN,
    )


def token_of(environ: Mapping[str, str], variable: str) -> str | None:
    """The token in a variable, None without one. Raises CheckpointError for what can be in no header."""
    token = environ.get(variable, "").strip()
    if not (token.isascii() and token.isprintable()):
        raise CheckpointError(f"{variable} holds characters that no token has", f"export {variable}=...   again")
    return token or None


def token_for(url: str, environ: Mapping[str, str], variable: str) -> str | None:
    """`token_of`, for the server of `url`. Raises CheckpointError when everybody on the way could read the token."""
    token = token_of(environ, variable)
    parts = urlsplit(url)
    if token is not None and parts.scheme.lower() != "https" and not _is_this_machine(parts.hostname or ""):
        raise CheckpointError(
            f"{shown_url(url)} has no https: the token in {variable} would be readable on the way",
            f"give the https address; for a server that needs no token: unset {variable}",
        )
    return token


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _url(text: str) -> Url:
    try:
        parts = urlsplit(text)
        valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or not text.isprintable() or " " in text:
        raise CheckpointError(f"{plain(text)}: no valid URL", "give http(s)://HOST/PATH")
    if "@" in parts.netloc:
        raise CheckpointError(
            f"{shown_url(text)}: a URL with a user or password is seen by everybody on this machine",
            f"export {URL_TOKEN}=...   and leave both out of the URL",
        )
    return Url(urlunsplit(parts._replace(fragment="")))


def _hub(repo: str, revision: str | None) -> Hub:
    if revision is not None and not _REVISION.fullmatch(revision):
        raise CheckpointError(f"{repo}: {plain(revision)!r} is no revision", "give a branch, a tag or a commit")
    return Hub(repo, revision)


def _url_token(url: str, environ: Mapping[str, str]) -> str | None:
    """The token for the server of a URL; the hub's own when the URL is on the hub."""
    endpoint = environ.get("HF_ENDPOINT", "")
    if endpoint and urlsplit(url)[:2] == urlsplit(endpoint)[:2]:
        return token_for(url, environ, HUB_TOKEN)
    return token_for(url, environ, URL_TOKEN)
