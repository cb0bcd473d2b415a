"""What a fake box's cards and driver are, and the text of it for fake_nvml.c. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

GIB = 1024**3
CARD_BYTES = 97_887 * 1024**2
"""What an RTX PRO 6000 (96 GB, ECC on) shows as its total, about."""
ANCESTORS = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}


@dataclass(frozen=True)
class Process:
    """A process that holds memory of a card; `name` is what /proc says, "" = not visible from here."""

    pid: int
    used_bytes: int
    name: str = "python3"
    graphics: bool = False


@dataclass(frozen=True)
class Card:
    """One card. `lost`: NVML code with which its handle is refused (15 = GPU is lost). `fails`: call -> NVML code.
    `numa_node` -1 is what the kernel says when it does not know. `nvlink`: number of links; `nvlink_to`: the bus id at
    their far end, "" = a switch."""

    bus_id: str
    uuid: str
    name: str = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
    total_bytes: int = CARD_BYTES
    reserved_bytes: int = 615 * 1024**2
    used_bytes: int = 0
    capability: tuple[int, int] = (12, 0)
    processes: tuple[Process, ...] = ()
    numa_node: int = 0
    cpus: str = "0-31"
    gen_idle: int = 5
    gen_load: int = 5
    gen_max: int = 5
    width: int = 16
    width_max: int = 16
    replays: int = 0
    bar1_bytes: int = 128 * GIB
    mig: tuple[int, int] = (0, 0)
    ecc: tuple[int, int] = (1, 1)
    remapped: tuple[int, int] = (0, 0)
    persistence: int = 1
    power_mw: int = 600_000
    power_default_mw: int = 600_000
    throttle: int = 1
    busy: int = 0
    temperature: int = 41
    power_now_mw: int = 92_500
    pcie_rx_kb: int = 0
    pcie_tx_kb: int = 0
    nvlink: int = 0
    nvlink_to: str = ""
    lost: int = 0
    fails: Mapping[str, int] = field(default_factory=dict)


CARDS = (
    Card("00000000:41:00.0", "GPU-11111111-2222-3333-4444-555555555501"),
    Card("00000000:81:00.0", "GPU-11111111-2222-3333-4444-555555555502"),
)


@dataclass(frozen=True)
class Setup:
    """The driver and its cards; the default is two good cards on one NUMA node.

    `module`: version of the loaded kernel module, "" = none is loaded (then set `init` to 9). `library`: whether
    libnvidia-ml.so.1 can be loaded. `init`: NVML code of nvmlInit (18 = library and module differ). `relation`: of all
    pairs; `relations`: of single ones. `p2p`: NVML's P2P status of all pairs. `hang`, `crash`: the call that never
    returns, or that ends the process by SIGSEGV. `fails`: call -> NVML code, on all cards. `missing`: how many of
    `cards`, from the end, the driver does not count although the kernel has registered them. `noise`: what the
    library prints on stdout by itself. `topo`: what `nvidia-smi topo -m` prints; None = it fails.
    """

    cards: tuple[Card, ...] = CARDS
    driver: str = "580.95.05"
    module: str = "580.95.05"
    library: bool = True
    init: int = 0
    cuda: int = 13_000
    relation: str = "NODE"
    relations: Mapping[tuple[int, int], str] = field(default_factory=dict)
    p2p: int = 0
    confidential: int = 0
    memory_v2: bool = True
    hang: str = ""
    crash: str = ""
    fails: Mapping[str, int] = field(default_factory=dict)
    missing: int = 0
    noise: str = ""
    topo: str | None = None

    def text(self, load: str) -> str:
        """The file that fake_nvml.c reads. `load`: the path whose existence means that the cards are busy."""
        lines = [
            f"load={load}",
            f"init={self.init}",
            f"driver={self.driver}",
            f"nvml_version=13.{self.driver}",
            f"cuda={self.cuda}",
            f"confidential={self.confidential}",
            f"memory_v2={int(self.memory_v2)}",
            f"count={len(self.cards) - self.missing}",
            f"hang={self.hang}",
            f"crash={self.crash}",
            f"noise={self.noise}",
            *(f"fail.{call}={code}" for call, code in self.fails.items()),
        ]
        for index, card in enumerate(self.cards):
            lines += [f"card.{index}.{line}" for line in _card_lines(card)]
            for other in range(index + 1, len(self.cards)):
                relation = self.relations.get((index, other), self.relation)
                lines.append(f"ancestor.{index}.{other}={ANCESTORS[relation]}")
                lines.append(f"p2p.{index}.{other}={self.p2p}")
        return "\n".join(lines) + "\n"


def _card_lines(card: Card) -> Iterator[str]:
    for name in ("name", "uuid", "bus_id", "cpus", "gen_idle", "gen_load", "gen_max", "width", "width_max", "replays"):
        yield f"{name}={getattr(card, name)}"
    for name in ("persistence", "power_mw", "power_default_mw", "throttle", "nvlink", "lost"):
        yield f"{name}={getattr(card, name)}"
    for name in ("busy", "temperature", "power_now_mw", "pcie_rx_kb", "pcie_tx_kb"):
        yield f"{name}={getattr(card, name)}"
    for name in ("mig", "ecc", "remapped"):
        yield f"{name}={getattr(card, name)[0]},{getattr(card, name)[1]}"
    yield f"total={card.total_bytes}"
    yield f"reserved={card.reserved_bytes}"
    yield f"used={card.used_bytes}"
    yield f"bar1={card.bar1_bytes}"
    yield f"capability={card.capability[0]}.{card.capability[1]}"
    for kind, graphics in (("compute", False), ("graphics", True)):
        held = [f"{one.pid}:{one.used_bytes}" for one in card.processes if one.graphics == graphics]
        yield f"{kind}={' '.join(held)}"
    if card.nvlink_to:
        yield f"nvlink_to={card.nvlink_to}"
    for call, code in card.fails.items():
        yield f"fail.{call}={code}"
