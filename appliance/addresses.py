"""Addresses as an operator may write them in appliance.toml. Pure.

Each function returns the address as it is kept; raises ValueError with what it must be.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit


def listening(text: str) -> str:
    """HOST:PORT to listen on."""
    host, separator, port = text.rpartition(":")
    if not separator or not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535 or not host:
        raise ValueError("must be HOST:PORT with a port from 1 to 65535, for instance 127.0.0.1:8000 or [::1]:8000")
    bracketed = host.startswith("[") and host.endswith("]")
    if host != "localhost":
        try:
            address = ipaddress.ip_address(host[1:-1] if bracketed else host)
        except ValueError:
            raise ValueError("must name an IP address or localhost, for instance 127.0.0.1:8000") from None
        if bracketed != (address.version == 6):
            raise ValueError("must have an IPv6 address, and only that, in brackets, for instance [::1]:8000")
    return text


def origin(text: str) -> str:
    """http:// or https:// and a host, or nothing."""
    if not text:
        return text
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    alone = parts.path in ("", "/") and not (parts.query or parts.fragment or "@" in parts.netloc or port == 0)
    if parts.scheme not in ("http", "https") or not parts.hostname or not alone or re.search(r"[\s?#]", text):
        raise ValueError("must be http:// or https:// and a host alone, no path behind it: https://box.example")
    return text


def proxy(text: str) -> str:
    """The address in the form in which connections show theirs."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError("must be an IP address, for instance 10.0.0.1") from None
    raise ValueError("is a network; list the address of each proxy, for instance 10.0.0.1")
