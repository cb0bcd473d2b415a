"""The tier runs where only loopback exists."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import time

import pytest

from tests.agents.isolated import OUTSIDE, routed


@pytest.mark.parametrize(("family", "address"), OUTSIDE)
def test_no_address_outside_can_be_reached(family: socket.AddressFamily, address: str) -> None:
    started_s = time.monotonic()
    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as sock:
        sock.settimeout(5)
        assert sock.connect_ex((address, 443)) in (errno.ENETUNREACH, errno.EADDRNOTAVAIL)
    assert time.monotonic() - started_s < 1


def test_no_name_can_be_looked_up() -> None:
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo("api.anthropic.com", 443)


def test_loopback_works() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        assert sock.getpeername() == listener.getsockname()


def test_a_process_started_here_is_as_isolated() -> None:
    code = "from tests.agents.isolated import routed; print(routed())"
    told = subprocess.run([sys.executable, "-c", code], cwd=os.getcwd(), capture_output=True, text=True, check=True)
    assert (routed(), told.stdout.strip()) == ([], "[]")


def test_a_machine_without_namespaces_is_told_so() -> None:
    environ = {**os.environ, "PATH": "/nonexistent"}
    argv = [sys.executable, "-m", "tests.agents.isolated", "true"]
    told = subprocess.run(argv, env=environ, capture_output=True, text=True)
    assert told.returncode == 78
    assert told.stderr.startswith("error: the tests with real clients run without a network, but ")
    assert "\nremedy: " in told.stderr
