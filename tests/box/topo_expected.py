"""What each file in topo_samples says: written by hand from the shape of the box, not by the parser."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Expected:
    """`matrix`: rows of words, GPUs only, "?" = the row does not say; `cpus`, `numa`: by GPU; `nics`: name -> (device,
    what each GPU says of it); `unread`: numbers of the lines."""

    matrix: tuple[str, ...]
    cpus: tuple[str, ...]
    numa: tuple[str, ...]
    nics: dict[str, tuple[str, str]] = field(default_factory=dict)
    unread: tuple[int, ...] = ()
    contradictions: tuple[str, ...] = ()


def _halves(count: int, one: str, other: str) -> tuple[str, ...]:
    return (one,) * (count // 2) + (other,) * (count // 2)


def _all_pairs(count: int, word: str) -> tuple[str, ...]:
    return tuple(" ".join("X" if column == row else word for column in range(count)) for row in range(count))


def _two(word: str, cpus: str, numa: str = "0", **more: tuple[int, ...]) -> Expected:
    return Expected((f"X {word}", f"{word} X"), (cpus, cpus), (numa, numa), **more)  # type: ignore[arg-type]


_NIC_COLUMNS = {
    # NIC0-3 and NIC6-9 share a switch with one GPU each, the others hang on a bridge of their own.
    **{
        f"NIC{n}": (f"mlx5_{n}", " ".join(["PXB" if g == n else "NODE" for g in range(4)] + ["SYS"] * 4))
        for n in range(6)
    },
    **{
        f"NIC{n}": (f"mlx5_{n}", " ".join(["SYS"] * 4 + ["PXB" if g == n - 6 else "NODE" for g in range(4)]))
        for n in range(6, 12)
    },
}

EXPECTED = {
    "two_cards_phb": _two("PHB", "0-13"),
    "two_cards_node": _two("NODE", "0-15"),
    "two_cards_two_sockets": Expected(("X SYS", "SYS X"), ("0-31,64-95", "32-63,96-127"), ("0", "1")),
    "five_cards_one_apart": Expected(
        (
            "X SYS SYS SYS SYS",
            "SYS X PHB NODE NODE",
            "SYS PHB X NODE NODE",
            "SYS NODE NODE X PHB",
            "SYS NODE NODE PHB X",
        ),
        ("12-23,36-47", *("0-11,24-35",) * 4),
        ("1", "0", "0", "0", "0"),
    ),
    "eight_cards_all_sys": Expected(
        _all_pairs(8, "SYS"), _halves(8, "0-31,64-95", "32-63,96-127"), _halves(8, "0", "1")
    ),
    "eight_cards_nvswitch_nics": Expected(
        _all_pairs(8, "NV18"), _halves(8, "0-47,96-143", "48-95,144-191"), _halves(8, "0", "1"), _NIC_COLUMNS
    ),
    "four_cards_maxq": Expected(
        ("X PHB NODE NODE", "PHB X NODE NODE", "NODE NODE X NODE", "NODE NODE NODE X"), ("0-63",) * 4, ("0",) * 4
    ),
    "four_cards_nps4": Expected(
        ("X NV12 SYS SYS", "NV12 X SYS SYS", "SYS SYS X NV12", "SYS SYS NV12 X"),
        _halves(4, "16-31,80-95", "48-63,112-127"),
        _halves(4, "1", "3"),
        {"NIC0": ("mlx5_0", "PXB PXB SYS SYS"), "NIC1": ("mlx5_1", "SYS SYS PXB PXB")},
    ),
    "hybrid_cube_mesh": Expected(
        (
            "X NV1 NV1 NV2 NV2 SYS SYS SYS",
            "NV1 X NV2 NV1 SYS NV2 SYS SYS",
            "NV1 NV2 X NV2 SYS SYS NV1 SYS",
            "NV2 NV1 NV2 X SYS SYS SYS NV1",
            "NV2 SYS SYS SYS X NV1 NV1 NV2",
            "SYS NV2 SYS SYS NV1 X NV2 NV1",
            "SYS SYS NV1 SYS NV1 NV2 X NV2",
            "SYS SYS SYS NV1 NV2 NV1 NV2 X",
        ),
        _halves(8, "0-19,40-59", "20-39,60-79"),
        _halves(8, "0", "1"),
    ),
    "two_h200_nvswitch": _two("NV18", "0-31"),
    "blank_affinities": Expected(("X NV18", "NV18 X"), ("0-31", ""), ("", "0")),
    "old_driver_mlx5": Expected(
        ("X PIX PHB PHB", "PIX X PHB PHB", "PHB PHB X PIX", "PHB PHB PIX X"),
        ("0-9,20-29",) * 4,
        ("",) * 4,
        {"mlx5_0": ("", "PHB PHB SYS SYS")},
    ),
    "oldest_driver_soc": Expected(
        ("X PIX SYS", "PIX X SYS", "SYS SYS X"), ("0-5,12-17", "0-5,12-17", "6-11,18-23"), ("",) * 3
    ),
    "markdown_spaces": _two("PXB", "0-23,48-71", unread=(1, 9)),
    "single_spaces": Expected(("X NODE", "NODE X"), ("0-15", ""), ("0", ""), unread=(3,)),
    "quoted_without_escapes": Expected(("X SYS", "SYS X"), ("0-31", "32-63"), ("0", "1")),
    "dos_line_ends": _two("PIX", "0-7"),
    "mig_on": _two("NODE", "0-47", unread=(1, 2, 3)),
    "wrapped_at_60_columns": Expected(
        (
            "X PIX NODE NODE SYS SYS SYS SYS",
            "PIX X NODE NODE SYS SYS SYS SYS",
            "NODE NODE X PIX SYS SYS SYS SYS",
            "NODE NODE PIX X SYS SYS SYS SYS",
            "SYS SYS SYS SYS X PIX NODE NODE",
            "SYS SYS SYS SYS PIX X NODE NODE",
            "SYS SYS SYS SYS NODE NODE X PIX",
            "SYS SYS SYS SYS NODE NODE PIX X",
        ),
        _halves(8, "0-63", "64-127"),
        _halves(8, "0", "1"),
    ),
    "rows_out_of_order": Expected(("X PHB SYS", "PHB X SYS", "SYS SYS X"), ("0-15", "0-15", "16-31"), ("0", "0", "1")),
    "contradictory": Expected(
        ("X NODE SYS", "SYS X SYS", "SYS SYS X"),
        ("0-15", "0-15", "16-31"),
        ("0", "0", "1"),
        contradictions=("GPU0 and GPU1: NODE in one row, SYS in the other",),
    ),
    "damaged_lines": Expected(("X NODE ?",), ("0-15",), ("0",), unread=(2, 3, 4, 5, 6)),
}
