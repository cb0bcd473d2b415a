"""appliance/box/acs.py: access controls out of a bridge's configuration space."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.box.acs import redirects


def config(control: int, *, at: int = 0x148, before: int = 0x100) -> bytes:
    """4 KiB with AER (0x0001) at `before`, which points to ACS at `at` with this control register."""
    space = bytearray(4096)
    space[before : before + 4] = (0x0001 | 2 << 16 | at << 20).to_bytes(4, "little")
    space[at : at + 4] = (0x000D | 1 << 16).to_bytes(4, "little")
    space[at + 6 : at + 8] = control.to_bytes(2, "little")
    return bytes(space)


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        (0x0000, ()),
        (0x001D, ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")),
        (0x0004, ("ReqRedir",)),
        (0x0042, ()),  # TransBlk and DirectTrans redirect nothing
    ],
)
def test_the_controls_that_redirect_are_named_as_lspci_names_them(control: int, expected: tuple[str, ...]) -> None:
    assert redirects(config(control)) == expected


def test_a_configuration_space_cut_at_64_bytes_is_unknown() -> None:
    assert redirects(config(0x001D)[:64]) is None
    assert redirects(config(0x001D)[: 0x148 + 4]) is None


def test_a_bridge_without_the_capability_redirects_nothing() -> None:
    space = bytearray(4096)
    assert redirects(bytes(space)) == ()
    space[0x100:0x104] = (0x0001 | 2 << 16).to_bytes(4, "little")
    assert redirects(bytes(space)) == ()


def test_a_list_that_points_at_itself_ends() -> None:
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    assert redirects(bytes(space)) == ()


@given(st.binary(max_size=600))
def test_any_bytes_give_an_answer(space: bytes) -> None:
    assert redirects(space) is None or isinstance(redirects(space), tuple)
