"""appliance.box.topology_verdict: what the cards' relation and their NUMA nodes mean together."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.box.gpu import Relation
from appliance.box.topology_verdict import ASK, MEASURE, SLOW_FACTOR, Grade, verdict

NEAR = [Relation.NV, Relation.PIX, Relation.PXB, Relation.PHB, Relation.NODE]


@pytest.mark.parametrize("relation", NEAR)
@pytest.mark.parametrize("node", [0, 3, None])
def test_anything_but_sys_on_one_node_is_good_and_asks_for_nothing(relation: Relation, node: int | None) -> None:
    found = verdict({(0, 1): relation}, {0: node, 1: node}, [0, 1])
    assert (found.grade, found.factor, found.remedy) == (Grade.GOOD, None, "")


def test_sys_across_nodes_is_the_slow_host_with_its_factor_and_what_to_ask_for() -> None:
    found = verdict({(0, 1): Relation.SYS}, {0: 0, 1: 1}, [0, 1])
    assert found.grade is Grade.SLOW
    assert found.factor == SLOW_FACTOR == (1.17, 1.51)
    assert found.remedy == ASK
    assert found.observed.startswith("GPU0 and GPU1: SYS, on NUMA nodes 0 and 1")


def test_sys_inside_one_node_is_a_note() -> None:
    found = verdict({(0, 1): Relation.SYS}, {0: 0, 1: 0}, [0, 1])
    assert (found.grade, found.factor, found.remedy) == (Grade.NOTE, None, MEASURE)


@pytest.mark.parametrize("nodes", [{}, {0: 1}, {0: None, 1: None}])
def test_sys_with_a_node_unknown_cannot_be_told_and_is_to_be_measured(nodes: dict[int, int | None]) -> None:
    found = verdict({(0, 1): Relation.SYS}, nodes, [0, 1])
    assert (found.grade, found.factor, found.remedy) == (Grade.UNKNOWN, None, MEASURE)


def test_a_relation_that_nobody_told_is_unknown_and_not_good() -> None:
    assert verdict({}, {0: 0, 1: 0}, [0, 1]).grade is Grade.UNKNOWN


@pytest.mark.parametrize("relation", NEAR)
def test_near_cards_on_two_nodes_are_a_note_since_only_host_memory_is_far(relation: Relation) -> None:
    assert verdict({(0, 1): relation}, {0: 1, 1: 3}, [0, 1]).grade is Grade.NOTE


def test_the_worst_pair_decides_and_the_others_like_it_are_counted() -> None:
    # given the study's kind of box with one card apart from four
    relations = {pair: Relation.SYS if 0 in pair else Relation.NODE for pair in combinations(range(5), 2)}
    nodes = {0: 1, **dict.fromkeys(range(1, 5), 0)}
    # when
    found = verdict(relations, nodes, range(5))
    # then
    assert found.pairs == ((0, 1), (0, 2), (0, 3), (0, 4))
    assert found.observed.endswith("(3 more such pairs)")
    # and a plan that leaves that card out is fine
    assert verdict(relations, nodes, [1, 2]).grade is Grade.GOOD


@pytest.mark.parametrize("cards", [[], [0]])
def test_fewer_than_two_cards_are_good(cards: list[int]) -> None:
    assert verdict({}, {}, cards).grade is Grade.GOOD


@given(
    st.dictionaries(st.sampled_from([(0, 1), (0, 2), (1, 2)]), st.sampled_from([*NEAR, Relation.SYS])),
    st.dictionaries(st.integers(0, 2), st.one_of(st.none(), st.integers(0, 1))),
)
def test_only_sys_between_two_known_nodes_is_called_slow(
    relations: dict[tuple[int, int], Relation], nodes: dict[int, int | None]
) -> None:
    found = verdict(relations, nodes, [0, 1, 2])
    slow = [
        (a, b)
        for (a, b), relation in relations.items()
        if relation is Relation.SYS and None not in (nodes.get(a), nodes.get(b)) and nodes[a] != nodes[b]
    ]
    assert (found.grade is Grade.SLOW) == bool(slow)
    assert (found.factor is not None) == bool(slow)
    if slow:
        assert set(found.pairs) == set(slow)
