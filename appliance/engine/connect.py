"""HTTP to the engine from the daemon's side: over TCP or a Unix socket. Touches nothing until a request is sent.

Rule: no proxy of the environment: that is for the world, not for the engine.
"""

from __future__ import annotations

import httpx

from appliance import __version__
from gateway.state import UNIX

USER_AGENT = f"moe-appliance/{__version__}"
"""Who asks, for the engine's access log."""


def plain_url(url: str) -> str:
    """`url` as requests carry it: a host with accents by its ASCII name. Raises ValueError, and does not repeat it."""
    try:
        plain = httpx.URL(url)
        _ = plain.host  # read back from its ASCII name with every request
        plain.raw_host.decode().encode("idna")  # as the resolver does
    except (httpx.InvalidURL, UnicodeError):
        raise ValueError(
            "is no address that a request can carry; write the host's ASCII name, or its IP address"
        ) from None
    return str(plain)


def engine_client(
    url: str,
    key: str | None,
    timeout_s: float,
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    reuse: bool = True,
) -> httpx.AsyncClient:
    """A client whose paths are the engine's. `url`: `http://host:port` or `unix:/path`. `reuse` False = a connection
    for each request: llama.cpp closes one after a stream although it says that it will not. `transport`: for tests."""
    limits = httpx.Limits() if reuse else httpx.Limits(max_keepalive_connections=0)
    if transport is None and url.startswith(UNIX):
        transport = httpx.AsyncHTTPTransport(uds=url.removeprefix(UNIX), limits=limits)
    return httpx.AsyncClient(
        base_url="http://engine" if url.startswith(UNIX) else url,
        headers={"user-agent": USER_AGENT} | ({} if key is None else {"authorization": f"Bearer {key}"}),
        timeout=timeout_s,
        transport=transport,
        limits=limits,
        trust_env=False,
    )
