"""What the verbs that only look take for the engine: the pair in use, as the daemon kept it."""

from __future__ import annotations

import sys
from pathlib import Path

from appliance.config import Config, Paths, parsed
from appliance.engine import pairs_kept
from appliance.engine.pairs import Pairs
from appliance.engine.vllm.settings import VllmSettings
from appliance.using import as_used
from gateway.state import Pair

TOML = 'listen = "127.0.0.1:1"\nstate_dir = "state"\nruntime_dir = "run"\n[engine]\n'
CHOSEN = Pair(environment="vllm-0123456789ab")


def box(home: Path, engine: str) -> tuple[Config, Paths]:
    (home / "state").mkdir(exist_ok=True)
    return parsed(home / "appliance.toml", (TOML + engine).encode(), {})


def test_what_was_chosen_is_looked_at(tmp_path: Path) -> None:
    config, paths = box(tmp_path, 'kind = "vllm"\n')
    pairs_kept.save(paths.state_dir, Pairs(current=CHOSEN))
    engine = as_used(config, paths).engine
    assert isinstance(engine, VllmSettings)
    assert engine.environment == CHOSEN.environment


def test_an_edited_file_and_a_choice_that_has_no_place_in_it_are_taken_as_they_are(tmp_path: Path) -> None:
    config, paths = box(tmp_path, 'kind = "vllm"\nenvironment = "vllm-cpu"\n')
    pairs_kept.save(paths.state_dir, Pairs(current=CHOSEN))
    assert as_used(config, paths) == config
    config, paths = box(tmp_path, 'kind = "embedded"\n')
    assert as_used(config, paths) == config


def test_a_name_is_looked_at_as_the_installation_that_served(tmp_path: Path) -> None:
    config, paths = box(tmp_path, 'kind = "vllm"\n')
    pairs_kept.save(paths.state_dir, Pairs(served="vllm-0123456789ab"))
    engine = as_used(config, paths).engine
    assert isinstance(engine, VllmSettings)
    assert engine.environment == "vllm-0123456789ab"
    # also after the file was edited, unless it names another environment or a Python
    for said in ('environment = "vllm-cpu"', f'python = "{sys.executable}"'):
        config, paths = box(tmp_path, f'kind = "vllm"\n{said}\n')
        assert as_used(config, paths) == config
    config, paths = box(tmp_path, 'kind = "vllm"\nenvironment = "vllm"\n')
    engine = as_used(config, paths).engine
    assert isinstance(engine, VllmSettings)
    assert engine.environment == "vllm-0123456789ab"
