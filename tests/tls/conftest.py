"""Fixtures: the loop that the gateway runs on, a certificate, and a gateway behind each proxy.

Touches processes, sockets and temporary folders.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.running import Running, running
from tests.gateway.wire import Answer, Wire, post
from tests.tls.forms import Form
from tests.tls.proxies import STARTS, Certificate, Proxy, make_certificate
from tests.tls.snippets import NAME

PUBLIC: dict[str, Any] = {"public_url": f"https://{NAME}", "trusted_proxies": ("127.0.0.1",)}
"""What the page's appliance.toml says; test_page.py checks that it does."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="session")
def certificate() -> Iterator[Certificate]:
    with tempfile.TemporaryDirectory(prefix="moe-tls-", dir="/tmp") as folder:
        yield make_certificate(Path(folder))


@dataclass(frozen=True, slots=True)
class Front:
    """A gateway, and how to reach it: past the proxy's TLS, or directly. `context` None: a proxy without TLS."""

    gateway: Running
    proxy: Proxy
    context: ssl.SSLContext | None

    @asynccontextmanager
    async def connect(self, data: bytes = b"", *, direct: bool = False, source: str = "") -> AsyncIterator[Wire]:
        """A connection on which `data` was sent, TLS to the proxy or (`direct`) plain to the gateway."""
        local = (source, 0) if source else None
        if direct:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port, local_addr=local)
        else:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1",
                self.proxy.port,
                ssl=self.context,
                server_hostname=NAME if self.context else None,
                local_addr=local,
            )
        wire = Wire(reader, writer)
        try:
            if data:
                await wire.send(data)
            yield wire
        finally:
            wire.vanish()
            await asyncio.sleep(0)

    async def exchange(self, data: bytes, *, direct: bool = False, source: str = "") -> Answer:
        """One request on a fresh connection, and the answer."""
        async with self.connect(data, direct=direct, source=source) as wire:
            return await wire.answer()


def ask(form: Form, seat: str | None = "a", headers: Mapping[str, str] | None = None, **fields: Any) -> bytes:
    """A request of that form, to the page's host."""
    return post(form.body(**fields), path=form.path, seat=seat, headers={"Host": NAME, **(headers or {})})


Fronted = Callable[..., AbstractAsyncContextManager[Front]]


@pytest.fixture(params=sorted(STARTS))
def fronted(request: pytest.FixtureRequest, certificate: Certificate) -> Fronted:
    """Starts a gateway (knobs and settings as for `running`) behind one of the proxies."""
    return fronted_by(STARTS[request.param], certificate)


def fronted_by(start: Callable[..., Any], certificate: Certificate, *, tls: bool = True) -> Fronted:
    """The same for one way to start a proxy."""

    @asynccontextmanager
    async def front(knobs: dict[str, object] | None = None, **settings: Any) -> AsyncIterator[Front]:
        context = ssl.create_default_context(cafile=str(certificate.certificate)) if tls else None
        with tempfile.TemporaryDirectory(prefix="moe-tls-", dir="/tmp") as folder:
            async with running(knobs, **PUBLIC | settings) as gateway:
                with start(Path(folder), gateway.port, certificate) as proxy:
                    yield Front(gateway, proxy, context)

    return front
