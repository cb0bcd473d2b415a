"""A hub on loopback: listings, files at a revision, large ones redirected to another port. Touches sockets, files."""

from __future__ import annotations

import json
import re
from hashlib import sha1, sha256
from pathlib import Path
from urllib.parse import unquote

from tests.checkpoint.range_server import RangeServer, Request

COMMIT = "5f" * 20
_API = re.compile(r"/api/models/([^/]+/[^/]+?)(?:/revision/(.+))?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
LARGE = (".safetensors", ".gguf")


class HubServer(RangeServer):
    """The hub of one repository, whose files are in `folder`; `cdn` serves the large ones and should be given no token.

    `revisions`: what it knows besides the commit; `listed_sizes`: name -> size in the listing where it should be wrong;
    `refused`: it lists the files and gives none of them (a gated repository).
    """

    def __init__(self, folder: Path, cdn: RangeServer, repo: str = "org/name") -> None:
        super().__init__(folder)
        self.repo = repo
        self.cdn = cdn
        self.revisions = {"main"}
        self.listed_sizes: dict[str, int] = {}
        self.refused = False

    def answer(self, request: Request) -> None:
        """Listing, file, or what a plain server has."""
        if match := _API.fullmatch(request.path):
            self._list(request, match[1], unquote(match[2] or "main"))
        elif match := _FILE.fullmatch(request.path):
            self._file(request, match[1], match[2], match[3])
        else:
            super().answer(request)

    def content_hash(self, path: Path) -> str:
        """Stands for the SHA-256 of a file that is too large to hash; changes when the file does."""
        status = path.stat()
        return sha256(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()

    def _known(self, request: Request, repo: str, revision: str) -> bool:
        if repo != self.repo:
            request.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif revision not in {*self.revisions, COMMIT}:
            request.send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            return True
        return False

    def _list(self, request: Request, repo: str, revision: str) -> None:
        if not self._known(request, repo, revision):
            return
        siblings = []
        for path in sorted(self.folder.rglob("*")):
            if not path.is_file():
                continue
            name = path.relative_to(self.folder).as_posix()
            size = self.listed_sizes.get(name, path.stat().st_size)
            entry: dict[str, object] = {"rfilename": name, "size": size, "blobId": self._blob(path)}
            if name.endswith(LARGE):
                entry["lfs"] = {"size": size, "sha256": self.content_hash(path), "pointerSize": 134}
            siblings.append(entry)
        body = json.dumps({"id": repo, "sha": COMMIT, "private": False, "tags": [], "siblings": siblings}).encode()
        request.send(200, body, {"Content-Type": "application/json"})

    def _file(self, request: Request, repo: str, revision: str, name: str) -> None:
        if not self._known(request, repo, revision):
            return
        path = self.folder / name
        if self.refused:
            request.send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif not path.is_file():
            request.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        elif name.endswith(LARGE):
            linked = {"X-Linked-ETag": f'"{self.content_hash(path)}"', "X-Linked-Size": str(path.stat().st_size)}
            target = f"{self.cdn.url}/{name}?signature=secret"
            request.send(302, b"", {"Location": target, "X-Repo-Commit": COMMIT, **linked})
        else:
            request.send_file(path, {"ETag": f'"{self._blob(path)}"', "X-Repo-Commit": COMMIT})

    @staticmethod
    def _blob(path: Path) -> str:
        return sha1(f"{path.name} {path.stat().st_mtime_ns}".encode(), usedforsecurity=False).hexdigest()
