"""What sysfs tells of NVIDIA's display devices and the bridges above them. Reads only; never raises.

A card's folder is a link into the tree of bridges: the parts of its target are the way up to the root port.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from appliance.box import acs
from appliance.box.host import Bridge, PciErrors

DEVICES = "sys/bus/pci/devices"
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def cards(root: Path) -> tuple[str, ...]:
    """Addresses of NVIDIA's display devices, in the order of the bus."""
    try:
        devices = sorted((root / DEVICES).iterdir())
    except OSError:
        return ()
    return tuple(
        device.name
        for device in devices
        if text(device / "vendor") == _NVIDIA and (text(device / "class") or "").startswith(_DISPLAY)
    )


def gpu_nodes(root: Path, addresses: tuple[str, ...]) -> Mapping[str, int]:
    """Address -> NUMA node, where the firmware gives one (virtual machines say -1)."""
    found = {address: number(root / DEVICES / address / "numa_node") for address in addresses}
    return {address: node for address, node in found.items() if node is not None and node >= 0}


def bridges(root: Path, address: str) -> tuple[str, ...]:
    """Addresses of the bridges above a card, the root port first."""
    try:
        way = (root / DEVICES / address).resolve().parts
    except (OSError, RuntimeError):  # RuntimeError: a loop of links
        return ()
    return tuple(part for part in way if _ADDRESS.fullmatch(part) and part != address)


def access_controls(root: Path, addresses: tuple[str, ...]) -> tuple[Bridge, ...] | None:
    """The bridges above any card that redirect; None when the configuration space of one could not be read whole."""
    found: list[Bridge] = []
    for bridge in sorted({above for address in addresses for above in bridges(root, address)}):
        try:
            config = (root / DEVICES / bridge / "config").read_bytes()
        except OSError:
            return None
        on = acs.redirects(config)
        if on is None:
            return None
        if on:
            found.append(Bridge(bridge, on))
    return tuple(found)


def errors(root: Path, addresses: tuple[str, ...]) -> tuple[PciErrors, ...]:
    """What each card, and the port that it hangs on, counted since boot."""
    ports = {address: None for card in addresses for address in (card, *bridges(root, card)[-1:])}
    found = []
    for address in ports:
        folder = root / DEVICES / address
        correctable, fatal = (_total(folder / f"aer_dev_{kind}") for kind in ("correctable", "fatal"))
        if correctable is not None or fatal is not None:
            found.append(PciErrors(address, correctable or 0, fatal or 0))
    return tuple(found)


def iommu(root: Path, addresses: tuple[str, ...]) -> tuple[int | None, str | None]:
    """How many groups there are (0 = no translation), and the type of the first card's."""
    kernel = root / "sys/kernel"
    groups: int | None
    try:
        groups = sum(1 for _ in (kernel / "iommu_groups").iterdir())
    except OSError:
        groups = 0 if kernel.is_dir() else None
    types = (text(root / DEVICES / address / "iommu_group/type") for address in addresses)
    return groups, next((kind for kind in types if kind), None)


def text(path: Path) -> str | None:
    """The file's text without white space around it, None when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def number(path: Path) -> int | None:
    """The whole number in a file, None when there is none."""
    try:
        return int(text(path) or "")
    except ValueError:
        return None


def _total(path: Path) -> int | None:
    for line in (text(path) or "").splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("TOTAL_ERR") and value.isdigit():
            return int(value)
    return None
