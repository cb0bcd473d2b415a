"""One model over several boxes: what is refused, what is warned of, and what vLLM is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from appliance.engine.vllm.nodes import JOINED, Nodes, findings, flags, left_alone, variables
from gateway.state import Severity

SECOND: dict[str, Any] = {
    "nnodes": 2,
    "node_rank": 1,
    "master_addr": "10.0.0.1",
    "host": "10.0.0.2",
    "interface": "ens5",
}


def second(**changed: Any) -> Nodes:
    return Nodes(**SECOND | changed)


def test_one_box_needs_nothing_and_gives_nothing() -> None:
    alone = Nodes()
    assert not alone.headless
    assert flags(alone) == ()
    assert variables(alone) == ()
    assert findings(alone, tensor_parallel=2, pipeline_parallel=1, cards=0) == ()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"node_rank": 2}, "the last is 1"),
        ({"nnodes": 1}, "ranks begin with 0"),
        ({"master_addr": ""}, "master_addr is needed"),
        ({"master_addr": "box.example"}, "must be an IP address"),
        ({"master_addr": "0.0.0.0"}, "the address of one box"),
        ({"master_addr": "127.0.0.1"}, "no other box reaches"),
        ({"master_addr": "127.0.0.1", "host": "", "node_rank": 0}, "no other box reaches"),
        ({"host": "127.0.0.1"}, "no other box reaches this one"),
        ({"host": ""}, "host is needed"),
        ({"interface": ""}, "interface is needed"),
        ({"interface": "a b"}, "pattern"),
        ({"master_port": 0}, "greater than or equal to 1024"),
        ({"master_port": 65536}, "less than or equal to 65535"),
        ({"master_port": "29501"}, "valid integer"),
        ({"executor": "ray"}, "one box has the engine"),
        ({"executor": "ray", "node_rank": 0, "host": ""}, "host is needed"),
        ({"nodes": 2}, "Extra inputs"),
    ],
)
def test_what_cannot_be_is_refused_with_the_key_and_the_reason(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        second(**changed)


def test_boxes_that_are_all_this_machine_say_so_twice() -> None:
    here = second(master_addr="127.0.0.1", host="127.0.0.1", interface="lo")
    assert findings(here, tensor_parallel=1, pipeline_parallel=2, cards=1) == ()


@given(st.integers(1, 16), st.integers(1, 16), st.integers(2, 16))
def test_ranks_are_shared_out_evenly_or_refused(tensor: int, pipeline: int, nnodes: int) -> None:
    boxes = second(nnodes=nnodes)
    if tensor * pipeline % nnodes:
        with pytest.raises(ValueError, match="cannot be shared out"):
            boxes.check_ranks(tensor, pipeline)
    else:
        boxes.check_ranks(tensor, pipeline)


@given(st.integers(2, 64), st.data())
def test_every_box_is_told_the_same_but_for_its_rank(nnodes: int, data: st.DataObject) -> None:
    ranks = data.draw(st.lists(st.integers(0, nnodes - 1), min_size=2, max_size=2, unique=True))
    assume(0 not in ranks)
    told = [dict((name, value) for name, value, _, _ in flags(second(nnodes=nnodes, node_rank=rank))) for rank in ranks]
    assert [one.pop("--node-rank") for one in told] == [str(rank) for rank in ranks]
    assert told[0] == told[1]


def test_box_0_serves_and_the_others_are_headless() -> None:
    first = second(node_rank=0, host="")
    assert (first.headless, second().headless) == (False, True)
    assert [name for name, *_ in flags(first)] == [
        "--distributed-executor-backend",
        "--nnodes",
        "--node-rank",
        "--master-addr",
        "--master-port",
    ]
    assert flags(second())[-1][:2] == ("--headless", None)
    assert ("--master-port", "29501") in [flag[:2] for flag in flags(first)]


def test_ray_has_no_nodes_of_vllm_and_is_told_which_cluster() -> None:
    boxes = second(executor="ray", node_rank=0)
    assert [flag[:2] for flag in flags(boxes)] == [("--distributed-executor-backend", "ray")]
    assert ("RAY_ADDRESS", "10.0.0.1:6379") in [variable[:2] for variable in variables(boxes)]
    assert not boxes.headless


def test_each_box_listens_on_its_own_address_and_interface() -> None:
    told = {name: value for name, value, _, _ in variables(second())}
    assert told == {"VLLM_HOST_IP": "10.0.0.2", "NCCL_SOCKET_IFNAME": "=ens5", "GLOO_SOCKET_IFNAME": "ens5"}
    assert variables(second(node_rank=0, host=""))[0][:2] == ("VLLM_HOST_IP", "10.0.0.1")


def test_every_flag_and_variable_has_a_reason_and_a_source() -> None:
    for boxes in (second(), second(executor="ray", node_rank=0)):
        for entry in (*flags(boxes), *variables(boxes)):
            assert all(entry[2:]), entry


def test_every_flag_is_one_of_the_pinned_vllm() -> None:
    parser = json.loads((Path(__file__).parents[2] / "data" / "vllm-0.26.0-parser.json").read_text())
    for boxes in (second(), second(executor="ray", node_rank=0)):
        for name, value, _, _ in flags(boxes):
            assert (parser[name]["nargs"] == 0) is (value is None), name


# ------------------------------------------------------------------------------------ findings


def found(boxes: Nodes, tensor: int = 2, pipeline: int = 2, cards: int | None = 2) -> dict[str, Severity]:
    return {
        finding.id: finding.severity
        for finding in findings(boxes, tensor_parallel=tensor, pipeline_parallel=pipeline, cards=cards)
    }


def test_ports_that_ask_nobody_are_told_of_and_refused_on_a_public_address() -> None:
    assert found(second()) == {"engine.nodes_open": Severity.WARN}
    assert found(second(master_addr="8.8.8.8"))["engine.nodes_open"] is Severity.FAIL
    (warning,) = findings(second(), tensor_parallel=2, pipeline_parallel=2)
    assert "ip daddr 10.0.0.2 ip saddr != { 10.0.0.1 } drop" in warning.remedy
    assert "tcp dport 29501 drop" in warning.remedy
    (six,) = findings(second(master_addr="fd00::1", host="fd00::2"), tensor_parallel=2, pipeline_parallel=2)
    assert "ip6 daddr fd00::2 ip6 saddr != { fd00::1 } drop" in six.remedy


def test_cards_that_do_not_match_the_ranks_here_are_told_of() -> None:
    assert found(second(), cards=1)["engine.nodes_cards"] is Severity.FAIL
    assert found(second(), cards=4)["engine.nodes_cards"] is Severity.WARN
    assert "engine.nodes_cards" not in found(second(), cards=None)


def test_tensor_parallel_over_the_network_is_told_with_what_to_set() -> None:
    (_, tensor) = findings(second(), tensor_parallel=4, pipeline_parallel=1, cards=2)
    assert tensor.id == "engine.nodes_tensor"
    assert tensor.remedy == "set tensor_parallel = 2 and pipeline_parallel = 2"


def test_a_box_has_joined_when_its_first_rank_found_the_others() -> None:
    line = (
        "(Worker pid=21) INFO 11-30 09:55:28 [parallel_state.py:1946] rank 1 in world size 2 is assigned as DP rank 0, "
        "PP rank 1, PCP rank 0, TP rank 0, EP rank N/A, EPLB rank N/A"
    )
    joined = JOINED.search(line)
    assert joined is not None
    assert (joined["rank"], joined["world"]) == ("1", "2")
    assert JOINED.search("world_size=2 rank=1 local_rank=0 distributed_init_method=tcp://127.0.0.1:29501") is None


def test_a_box_whose_head_has_gone_starts_anew_and_says_where_to_look() -> None:
    cause = left_alone(second(), "closed the connection")
    assert cause.retry
    assert "10.0.0.1:29501 has gone (closed the connection)" in cause.title
    assert cause.remedy.startswith("ssh 10.0.0.1 moe-appliance status")
