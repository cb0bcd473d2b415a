"""appliance.box.topology: exact tables from real-shaped text, and no text that breaks it."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.box.gpu import Relation
from appliance.box.topology import Cell, GpuRow, Topology, disagreement, parse
from tests.box.topo_expected import EXPECTED, Expected

SAMPLES = Path(__file__).with_name("topo_samples")


def sample(name: str) -> str:
    return (SAMPLES / f"{name}.txt").read_bytes().decode()


def said(topology: Topology) -> Expected:
    """The table in the words of the expectation."""
    indexes = sorted({row.index for row in topology.gpus} | {i for row in topology.gpus for i in row.cells})
    return Expected(
        tuple(" ".join(word(row, i) for i in _columns(topology, indexes)) for row in topology.gpus),
        tuple(row.cpus for row in topology.gpus),
        tuple(row.numa for row in topology.gpus),
        {
            name: (device, " ".join(spelled(row.nics.get(name)) for row in topology.gpus))
            for name, device in topology.nics.items()
        },
        tuple(line.number for line in topology.unread),
        topology.contradictions,
    )


def _columns(topology: Topology, indexes: list[int]) -> list[int]:
    return list(range(3)) if any("ERR!" in line.text for line in topology.unread) else indexes


def word(row: GpuRow, other: int) -> str:
    return "X" if row.index == other else spelled(row.cells.get(other))


def spelled(cell: Cell | None) -> str:
    return "?" if cell is None else f"{cell.relation}{cell.nvlinks or ''}"


def test_every_sample_has_an_expectation_and_there_are_enough() -> None:
    assert {path.stem for path in SAMPLES.iterdir()} == set(EXPECTED)
    assert len(EXPECTED) >= 12


@pytest.mark.parametrize("name", EXPECTED)
def test_a_sample_gives_its_exact_table(name: str) -> None:
    assert said(parse(sample(name))) == EXPECTED[name]


INTACT = [name for name, expected in EXPECTED.items() if not expected.unread and "?" not in "".join(expected.matrix)]
TABBED = [name for name in INTACT if "\t" in sample(name) and name != "blank_affinities"]


@pytest.mark.parametrize("name", TABBED)
@pytest.mark.parametrize("gap", [" ", "  ", "        "])
def test_a_paste_that_lost_its_tabs_gives_the_same_table(name: str, gap: str) -> None:
    # given a table whose rows have all their affinities, or none of them
    text = re.sub("\t+", gap, sample(name))
    # then nothing is lost with the TABs
    assert said(parse(text)) == EXPECTED[name]


@pytest.mark.parametrize("name", INTACT)
def test_quoting_and_fences_around_a_paste_change_nothing(name: str) -> None:
    lines = sample(name).splitlines()
    quoted = "\n".join(["> ```", *(f"> {line}" for line in lines), "> ```"])
    assert said(parse(quoted)) == EXPECTED[name]


def test_a_row_without_tabs_that_is_short_of_affinities_keeps_none() -> None:
    # given a row whose CPU affinity was empty, pasted without TABs
    text = "GPU0 GPU1 CPU Affinity NUMA Affinity GPU NUMA ID\nGPU0 X SYS 1 N/A\nGPU1 SYS X 0-3 0 N/A\n"
    # when
    topology = parse(text)
    # then the 1 is taken for neither of the two, the cells stand, and the line is named
    assert (topology.gpus[0].cpus, topology.gpus[0].numa) == ("", "")
    assert topology.relations == {(0, 1): Relation.SYS}
    assert [(line.number, line.why) for line in topology.unread] == [(2, "2 affinities under 3 titles")]


def test_a_second_table_is_named_and_left_out() -> None:
    # given the good box's table and then the bad box's
    text = sample("two_cards_node") + sample("two_cards_two_sockets")
    # when
    topology = parse(text)
    # then
    assert topology.relations == {(0, 1): Relation.NODE}
    assert [line.why for line in topology.unread] == ["a second table; only the first is read"]


def test_a_line_that_only_looks_like_a_heading_does_not_hide_the_table() -> None:
    topology = parse("GPU0 GPU0\nGPU1\nGPU0 GPU1 CPU Affinity\nGPU0 X PIX 0-3\nGPU1 PIX X 0-3\n")
    assert topology.relations == {(0, 1): Relation.PIX}
    assert [(line.number, line.why) for line in topology.unread] == [
        (1, "it is no heading"),
        (2, "a heading without rows"),
    ]


def test_the_rest_of_a_row_that_was_not_read_is_not_given_to_another() -> None:
    topology = parse("GPU0 GPU1 CPU Affinity\nGPU0 X PIX\nGPU0 X SYS\n8-9\nGPU1 PIX X\nwhat\n8-9\n")
    assert [row.cpus for row in topology.gpus] == ["", ""]
    assert [line.number for line in topology.unread] == [3, 4, 6, 7]


def test_a_contradictory_pair_has_no_relation_and_the_others_have() -> None:
    topology = parse(sample("contradictory"))
    assert topology.cell(0, 1) is None
    assert topology.cell(1, 0) is None
    assert topology.relations == {(0, 2): Relation.SYS, (1, 2): Relation.SYS}


def test_a_missing_row_is_filled_from_the_other_side() -> None:
    topology = parse("GPU0 GPU1 CPU Affinity\nGPU0 X PIX 0-3\n")
    assert topology.cell(1, 0) == Cell(Relation.PIX)


def test_nvlinks_are_counted_and_not_taken_for_a_gpus_name() -> None:
    assert parse("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n").cell(0, 1) == Cell(Relation.NV, 4)


def test_values_behind_a_whole_row_are_no_part_of_it() -> None:
    topology = parse("GPU0 GPU1 CPU Affinity\nGPU0 X PIX 0-3\n4-7\nGPU1 PIX X 0-3\n")
    assert [row.cpus for row in topology.gpus] == ["0-3", "0-3"]
    assert [line.number for line in topology.unread] == [3]


def test_an_error_of_nvidia_smi_is_no_table_and_is_named() -> None:
    topology = parse("Failed to initialize NVML: Driver/library version mismatch\n")
    assert topology.gpus == ()
    assert [line.number for line in topology.unread] == [1]


def test_what_a_terminal_would_obey_is_escaped_in_an_unread_line() -> None:
    topology = parse("GPU0 \x1b]0;title\x07 and \x9b31m more")
    assert topology.unread[0].text.isprintable()


def test_text_and_nvml_disagree_only_where_both_speak() -> None:
    # given NVML's relations of three cards, and a text about two of them
    table = parse(sample("two_cards_two_sockets"))
    # then
    assert disagreement({(0, 1): Relation.SYS, (0, 2): Relation.PIX}, table) == ""
    assert disagreement({(0, 1): Relation.NODE}, table) == (
        "GPU0 and GPU1: nvidia-smi topo -m says SYS, NVML says NODE"
    )
    assert disagreement({(0, 1): Relation.NODE}, Topology()) == ""


TEXTS = [sample(name) for name in EXPECTED]
PIECES = [
    "\t",
    " ",
    "\n",
    "\r\n",
    "X",
    "GPU0",
    "GPU1",
    "NIC0",
    "SYS",
    "NV",
    "NV18",
    "0-3",
    "N/A",
    "CPU Affinity",
    "\x1b[4m",
]
PIECES += [
    "Legend:",
    "> ",
    "|",
    "```",
    "GPU99999",
    "GPU٣",
    "NV٣",
    "\u2028",
    "\x00",
    "\ud800",
    "Legend NIC0: \x1b[2J",
    "X X",
]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A sample with some lines or characters taken out, doubled, swapped or replaced."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 6))):
        a, b = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        b = min(b, a + draw(st.sampled_from([1, 8, 80, 800])))
        middle = draw(st.sampled_from(["", text[a:b] * 2, text[a:b][::-1], *PIECES]))
        text = text[:a] + middle + text[b:]
    return text


def check(text: str) -> None:
    topology = parse(text)
    lines = re.split(r"\r\n|\n|\r", text)
    assert [row.index for row in topology.gpus] == sorted({row.index for row in topology.gpus})
    for row in topology.gpus:
        assert row.index not in row.cells
        assert all(cell.relation is not Relation.SELF for cell in [*row.cells.values(), *row.nics.values()])
        assert row.node is None or row.node >= 0
    for (a, b), relation in topology.relations.items():
        assert a < b
        assert topology.cell(a, b) == topology.cell(b, a)
        assert any(str(relation) in line or relation in ("SYS", "PIX") for line in lines)
    for unread in topology.unread:
        assert 1 <= unread.number <= len(lines)
        assert unread.why
        assert not {unicodedata.category(char) for char in unread.text + unread.why} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(mutated())
def test_a_damaged_table_is_read_without_an_exception(text: str) -> None:
    check(text)


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=6)), max_size=60).map("".join))
@example("GPU0 GPU0\nGPU0 X X\n")
@example("CPU Affinity\n0\n")
@example("GPU0 NV18\nGPU0 X X\n")
@example(" ".join(f"GPU{i}" for i in range(5000)))
def test_any_text_is_read_without_an_exception(text: str) -> None:
    check(text)


@given(st.sampled_from([name for name in INTACT if name != "wrapped_at_60_columns"]), st.randoms(use_true_random=False))
def test_the_order_of_unwrapped_rows_does_not_matter(name: str, random: Random) -> None:
    # given a table whose rows were sorted anew
    lines = sample(name).split("\n")
    rows = [place for place, line in enumerate(lines) if re.match(r"(> )?(GPU|NIC|mlx)\w*\d\s", line)]
    shuffled = list(rows)
    random.shuffle(shuffled)
    new = list(lines)
    for place, source in zip(rows, shuffled, strict=True):
        new[place] = lines[source]
    # then
    expected = said(parse(sample(name)))
    found = said(parse("\n".join(new)))
    assert (found.matrix, found.cpus, found.numa, found.nics) == (
        expected.matrix,
        expected.cpus,
        expected.numa,
        expected.nics,
    )
