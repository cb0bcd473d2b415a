"""The command of a vLLM engine: nothing without a reason, nothing that its release does not know."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.vllm.arguments import OURS, setting
from appliance.engine.vllm.flags import capture_sizes
from appliance.engine.vllm.profiles import PINNED_CPU, PROFILES
from appliance.engine.vllm.request import Known
from appliance.plan import planfile
from appliance.units import GIB
from tests.appliance.vllm.vllm_requests import CARDS, PLANS, TWO_CARDS, env, flags, made, parser, request, settings

FULL: dict[str, Any] = {
    "model": "org/name",
    "revision": "0123",
    "tensor_parallel": 2,
    "pipeline_parallel": 2,
    "kv_cache_gib": 2.0,
    "gpu_memory_utilization": 0.5,
    "max_batched_tokens": 2048,
    "context_tokens": 4096,
    "tool_call_parser": "hermes",
    "reasoning_parser": "deepseek_r1",
    "thinking": "off",
    "trust_remote_code": True,
    "host_kv_gib": 4.0,
}
APART = Known(cards=2, numa=(0, 1), nodes=2, numactl=True)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("said", [{}, FULL], ids=["bare", "full"])
def test_every_flag_is_in_the_pinned_parser_or_marked(profile: str, said: dict[str, Any]) -> None:
    if profile == "vllm-cpu-tiny":
        said = {key: value for key, value in said.items() if key != "host_kv_gib"}
    command = made(settings(profile=profile, **said), box=APART, template="/t.jinja")
    known = parser()
    for flag in (*command.flags, *command.tier):
        assert flag.name in known or flag.build == "operator", flag
        choices = known.get(flag.name, {}).get("choices")
        assert flag.build == "operator" or not choices or set(flag.values) <= set(choices), flag
        switch = known.get(flag.name, {}).get("nargs") == 0
        assert flag.name not in known or switch == (not flag.values), flag


@pytest.mark.parametrize("profile", PROFILES)
def test_everything_has_a_reason_and_a_source(profile: str) -> None:
    command = made(settings(profile=profile), box=APART, template="/t.jinja")
    for one in (*command.flags, *command.env):
        assert one.why, one
        assert one.source, one
    names = [setting(flag.name) for flag in command.flags]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("profile", PROFILES)
def test_no_key_no_port_and_one_socket(profile: str) -> None:
    command = made(settings(profile=profile))
    assert not {name for name in flags(command) if name in OURS} - {"--uds"}
    assert flags(command)["--uds"] == ("/run/x/engine/sock",)
    assert "VLLM_API_KEY" not in env(command)


def test_the_engine_takes_as_many_sequences_as_the_gateway_sends() -> None:
    command = made(streams=3)
    assert flags(command)["--max-num-seqs"] == ("3",)


def test_flags_that_a_release_does_not_have_are_left_out() -> None:
    assert "--max-num-active-seqs" not in flags(made())
    assert flags(made(version=PINNED_CPU, streams=2))["--max-num-active-seqs"] == ("2",)


@given(st.integers(1, 256), st.integers(0, 15))
def test_no_step_of_the_streams_is_without_a_graph(streams: int, speculative: int) -> None:
    sizes = capture_sizes(streams, speculative)
    each = 1 + speculative
    assert sizes == tuple(sorted(set(sizes)))
    assert sizes[-1] == streams * each
    for running in range(1, streams + 1):
        padded = next(size for size in sizes if size >= running * each)
        assert running > 8 or padded == running * each
        assert padded <= 2 * running * each
    assert len(sizes) <= 40


def test_the_recipes_eight_streams_reach_forty_eight_tokens() -> None:
    assert capture_sizes(8, 5) == (1, 2, 4, 6, 12, 18, 24, 30, 36, 42, 48)


def test_graphs_reach_the_tokens_of_a_draft_that_the_operator_chose() -> None:
    args = ["--speculative-config", '{"method":"mtp","num_speculative_tokens":3}']
    assert flags(made(settings(args=args), streams=4))["--cudagraph-capture-sizes"] == ("1", "2", "4", "8", "12", "16")


def test_a_draft_that_knows_its_own_number_leaves_the_graphs_to_vllm() -> None:
    assert "--cudagraph-capture-sizes" not in flags(made(settings(args=["--spec-method", "mtp"])))


def test_what_is_said_wins_over_the_plan_and_the_plan_over_the_profile() -> None:
    plan = planfile.load(PLANS / "deepseek-v4.1-flash-2x-rtx-pro-6000.json")
    planned = plan.model_copy(update={"targets": plan.targets.model_copy(update={"kv_bytes": 3 * GIB})})
    other = planned.model_copy(update={"topology": planned.topology.model_copy(update={"tp": 4})})
    assert flags(made(settings(profile=TWO_CARDS)))["--kv-cache-memory-bytes"] == (str(8 * GIB),)
    of_plan = flags(made(settings(profile=TWO_CARDS), plan=other))
    assert (of_plan["--kv-cache-memory-bytes"], of_plan["--tensor-parallel-size"]) == ((str(3 * GIB),), ("4",))
    said = flags(made(settings(profile=TWO_CARDS, kv_cache_gib=1.5, tensor_parallel=1), plan=other))
    assert said["--kv-cache-memory-bytes"] == (str(3 * GIB // 2),)
    assert said["--tensor-parallel-size"] == ("1",)


def test_the_operators_arguments_come_last_and_take_the_place_of_ours() -> None:
    command = made(settings(args=["--seed", "1", "--max_num_seqs=9", "-tp", "1", "--no-enable-request-id-headers"]))
    said = ("--seed", "1", "--max_num_seqs", "9", "-tp", "1", "--no-enable-request-id-headers")
    assert command.argv[-len(said) :] == said
    assert {flag.name for flag in command.replaced} == {
        *("--max-num-seqs", "--tensor-parallel-size", "--enable-request-id-headers"),
    }
    assert "--max-num-seqs" not in flags(command)


def test_a_model_in_a_folder_is_looked_up_nowhere() -> None:
    assert env(made())["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in env(made(settings(model="org/name"), model="org/name"))


def test_the_served_name_is_the_last_part_of_the_models() -> None:
    assert request().served_model == "tiny"
    assert request(model="/models/tiny/").served_model == "tiny"
    assert request(model="org/name").served_model == "name"
    assert request(settings(served_model="m")).served_model == "m"


def test_plugins_are_named_and_none_is_the_empty_text() -> None:
    assert env(made())["VLLM_PLUGINS"] == ""
    assert env(made(settings(profile=TWO_CARDS)))["VLLM_PLUGINS"] == "vllm_exl3"
    assert env(made(settings(plugins={"a": "x", "b": "y"})))["VLLM_PLUGINS"] == "a,b"


def test_the_template_is_named_when_one_is_known() -> None:
    assert flags(made(template="/t.jinja"))["--chat-template"] == ("/t.jinja",)
    assert "--chat-template" not in flags(made())


def test_thinking_is_set_for_both_names_that_templates_use() -> None:
    told = flags(made(settings(thinking="off")))["--default-chat-template-kwargs"]
    assert json.loads(told[0]) == {"enable_thinking": False, "thinking": False}
    assert "--default-chat-template-kwargs" not in flags(made())


def test_the_empty_parser_is_no_parser() -> None:
    assert "--tool-call-parser" not in flags(
        made(settings(profile=TWO_CARDS, tool_call_parser="", reasoning_parser=""))
    )
    assert "--enable-auto-tool-choice" in flags(made(settings(tool_call_parser="hermes")))


# The tier in host RAM


def test_the_tier_brings_the_dev_mode_and_no_moving_segments() -> None:
    command = made(settings(profile=TWO_CARDS, host_kv_gib=2.5))
    assert [flag.words for flag in command.tier] == [("--kv-offloading-size", "2.5")]
    assert "--kv-offloading-size" not in flags(command)
    assert env(command)["VLLM_SERVER_DEV_MODE"] == "1"
    assert not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & env(command).keys()


def test_without_the_tier_the_dev_mode_stays_off() -> None:
    assert "VLLM_SERVER_DEV_MODE" not in env(made())
    assert env(made(settings(profile=TWO_CARDS)))["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


# Cards that reach each other


def test_peer_access_is_off_until_it_was_seen_to_work() -> None:
    for peers in (None, False):
        command = made(settings(tensor_parallel=2), box=Known(cards=2, peers=peers))
        assert env(command)["NCCL_P2P_DISABLE"] == "1"
        assert "--disable-custom-all-reduce" in flags(command)
        assert "enable_flashinfer_autotune" in flags(command)["--kernel-config"][0]
    seen = made(settings(tensor_parallel=2), box=Known(cards=2, peers=True))
    assert "NCCL_P2P_DISABLE" not in env(seen)
    assert not {"--disable-custom-all-reduce", "--kernel-config"} & flags(seen).keys()


def test_one_card_needs_no_peer() -> None:
    assert "NCCL_P2P_DISABLE" not in env(made())
    assert "--disable-custom-all-reduce" not in flags(made())


def test_symmetric_memory_stays_off_unless_the_operator_says_so() -> None:
    assert env(made())["VLLM_ALLREDUCE_USE_SYMM_MEM"] == "0"
    assert env(made(settings(env={"VLLM_ALLREDUCE_USE_SYMM_MEM": "1"})))["VLLM_ALLREDUCE_USE_SYMM_MEM"] == "1"


def test_what_the_daemon_inherited_of_links_goes_to_the_engine_and_wins() -> None:
    environ = {"NCCL_P2P_DISABLE": "0", "TORCH_SYMM_MEM_X": "a", "NVSHMEM_Y": "b", "HOME": "/h"}
    found = env(made(settings(tensor_parallel=2), box=Known(cards=2, environ=environ)))
    assert (found["NCCL_P2P_DISABLE"], found["TORCH_SYMM_MEM_X"], found["NVSHMEM_Y"]) == ("0", "a", "b")
    assert "HOME" not in found
    said = env(made(settings(tensor_parallel=2, env={"NCCL_P2P_DISABLE": "1"}), box=Known(environ=environ)))
    assert said["NCCL_P2P_DISABLE"] == "1"


@pytest.mark.parametrize(
    "name",
    [
        *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "VLLM_PLUGINS", "VLLM_SERVER_DEV_MODE"),
        *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
    ],
)
def test_what_was_meant_for_another_python_is_withheld(name: str) -> None:
    command = made(box=Known(environ={name: "x"}))
    assert command.withheld == (name,)
    assert "x" not in env(command).values()


def test_what_the_operator_says_is_the_engines_whatever_the_daemon_has() -> None:
    said = settings(env={"PYTHONPATH": "/mine", "VLLM_PORT": "1"})
    found = env(made(said, box=Known(environ={"PYTHONPATH": "/x", "VLLM_PORT": "2"})))
    assert (found["PYTHONPATH"], found["VLLM_PORT"]) == ("/mine", "1")


def test_what_says_how_cards_reach_each_other_is_not_withheld() -> None:
    names = ("CUDA_VISIBLE_DEVICES", "HOME", "LD_LIBRARY_PATH", "NCCL_DEBUG", "NVSHMEM_Y", "TORCH_SYMM_MEM_X", "PATH")
    assert made(box=Known(environ=dict.fromkeys(names, "x"))).withheld == ()


# What is compiled

CACHES = {"VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"}
OF_CARDS = {"CUDA_CACHE_PATH", "FLASHINFER_WORKSPACE_BASE"}


def test_what_is_compiled_is_kept_in_the_environments_own_folder() -> None:
    found = env(made(cache="/state/engines/vllm-0/cache"))
    folders = {found[name] for name in CACHES | OF_CARDS}
    assert len(folders) == len(CACHES | OF_CARDS)
    assert all(folder.startswith("/state/engines/vllm-0/cache/") for folder in folders)


def test_an_engine_without_cards_has_no_caches_of_cards() -> None:
    found = env(made(settings(profile="vllm-cpu-tiny"), cache="/c"))
    assert found.keys() >= CACHES
    assert not found.keys() & OF_CARDS


def test_the_operators_cache_wins() -> None:
    found = env(made(settings(env={"TRITON_CACHE_DIR": "/fast"}), cache="/c"))
    assert found["TRITON_CACHE_DIR"] == "/fast"


def test_ranks_that_ray_starts_elsewhere_are_told_no_path_of_this_box() -> None:
    boxes = {"executor": "ray", "nnodes": 2, "master_addr": "10.0.0.1", "host": "10.0.0.2", "interface": "eth1"}
    assert not env(made(settings(nodes=boxes, tensor_parallel=2), cache="/c")).keys() & (CACHES | OF_CARDS)
    alone = {"executor": "ray"}
    assert env(made(settings(nodes=alone), cache="/c")).keys() >= CACHES


def test_ranks_are_bound_where_the_host_has_several_nodes() -> None:
    assert flags(made(settings(tensor_parallel=2), box=APART))["--numa-bind-nodes"] == ("0", "1")
    assert "--numa-bind" not in flags(made(settings(tensor_parallel=2), box=CARDS))
    for box in (Known(cards=2, numa=(0, None), nodes=2, numactl=True), Known(cards=2, numa=(0, 1), nodes=2)):
        assert "--numa-bind" not in flags(made(settings(tensor_parallel=2), box=box))


def test_an_engine_without_cards_is_told_of_none() -> None:
    command = made(settings(profile="vllm-cpu-tiny"), version=PINNED_CPU)
    found = env(command)
    assert found["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert not {"CUDA_DEVICE_ORDER", "VLLM_ALLREDUCE_USE_SYMM_MEM"} & found.keys()
    assert not {"--gpu-memory-utilization", "--cudagraph-capture-sizes"} & flags(command).keys()
    half = made(settings(profile="vllm-cpu-tiny", kv_cache_gib=0.5), version=PINNED_CPU)
    assert flags(half)["--kv-cache-memory-bytes"] == (str(GIB // 2),)


def test_several_boxes_are_told_of_each_other() -> None:
    boxes = {"nnodes": 2, "master_addr": "10.0.0.1", "interface": "eth1"}
    command = made(settings(nodes=boxes, tensor_parallel=2), box=APART)
    assert flags(command)["--nnodes"] == ("2",)
    assert env(command)["VLLM_HOST_IP"] == "10.0.0.1"
    assert "--numa-bind" not in flags(command)
