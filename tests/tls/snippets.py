"""The snippets of docs/tls.md as they stand there, with names and ports of a test put in. Reads that page.

Rules: nothing is changed but the constants below, each of which must occur; so what runs is what the page says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tls.md"
NAME = "box.example"
GATEWAY = "127.0.0.1:8000"
NGINX_CERTIFICATE = "/etc/ssl/box.example/fullchain.pem"
NGINX_KEY = "/etc/ssl/box.example/privkey.pem"
NGINX_LISTEN = "listen 443 "
HAPROXY_PEM = "/etc/haproxy/box.example.pem"
HAPROXY_BIND = "bind :443 "
_ONLY_ROOT = re.compile(r"(?m)^ +(user|group|chroot) .*\n")


def snippet(language: str, number: int = 0) -> str:
    """A fenced block of that language: 0 = the configuration, 1 = the addition that keeps page and metrics in."""
    found: list[str] = re.findall(rf"(?ms)^```{language}\n(.*?)^```$", PAGE.read_text())
    return found[number]


def filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with each key of `values` replaced, all of which occur."""
    for old, new in values.items():
        assert old in text, f"{old!r} is not in the snippet"
        text = text.replace(old, new)
    return text


def nginx_server(port: int, gateway: str, certificate: Path, key: Path) -> str:
    """The server block."""
    values = {NGINX_LISTEN: f"listen 127.0.0.1:{port} ", GATEWAY: gateway}
    return filled(snippet("nginx"), values | {NGINX_CERTIFICATE: str(certificate), NGINX_KEY: str(key)})


def haproxy_cfg(port: int, gateway: str, pem: Path) -> str:
    """The whole file. Who is not root cannot change into another user: then it stays what it is."""
    values = {HAPROXY_BIND: f"bind 127.0.0.1:{port} ", GATEWAY: gateway, HAPROXY_PEM: str(pem)}
    text = filled(snippet("haproxy"), values)
    return text if os.geteuid() == 0 else _ONLY_ROOT.sub("", text)
