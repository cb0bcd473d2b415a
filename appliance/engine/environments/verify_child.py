"""Says what is in the environment of the Python that runs this. Run as a file; standard library only.

usage: python -I verify_child.py '{"imports": [...], "device": "cuda"}'   -> one JSON object, the last line of stdout

Rules:
- It only reports; verify.py judges. What cannot be found out is left out or a text in `errors`.
- Libraries print while they are imported, so what they write to stdout goes to stderr. A driver or an import may hang
  or crash: the one who asks has a deadline, and each step that is done is on stdout before the next begins.
"""

import importlib
import json
import os
import shutil
import sys
import sysconfig
from importlib import metadata
from typing import Any

GROUP = "vllm.general_plugins"


def main() -> None:
    """Print what is known after each step; the last line is what counts."""
    asked = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    said: dict[str, Any] = {"python": sys.version.split()[0], "errors": {}}

    def tell(step: str) -> None:
        out.write(json.dumps(said | {"next": step}) + "\n")
        out.flush()

    said["packages"] = packages()
    said["plugins"] = plugins()
    said["no_compiler"] = no_compiler()
    for name in asked["imports"]:
        tell(f"import {name}")
        imported(name, said["errors"])
    said["imported"] = [name for name in asked["imports"] if name not in said["errors"]]
    if asked["device"] == "cuda":
        tell("CUDA")
        said["cuda"] = cuda()
    tell("platform")
    said["platform"] = platform()
    tell("")


def packages() -> dict[str, str]:
    """Name as indexes spell it -> version."""
    found = {}
    for one in metadata.distributions():
        name = one.metadata["Name"]
        if name:
            found[name.lower().replace("_", "-").replace(".", "-")] = one.version
    return found


def plugins() -> dict[str, str]:
    """vLLM's general plugins: name -> what is called."""
    return {one.name: one.value for one in metadata.entry_points(group=GROUP)}


def no_compiler() -> list[str]:
    """What Triton lacks for the small C program that it compiles when its first kernel runs."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    header = os.path.join(sysconfig.get_paths()["include"], "Python.h")  # noqa: PTH118
    return [*([] if compiler else ["gcc"]), *([] if os.path.exists(header) else [header])]  # noqa: PTH110


def imported(name: str, errors: dict[str, str]) -> None:
    """Import a module, or note why it cannot be."""
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # anything may be in a module
        errors[name] = f"{type(error).__name__}: {error}"[:500]


def cuda() -> dict[str, Any]:
    """What torch sees of the cards."""
    try:
        torch = importlib.import_module("torch")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return {
            "built_for": str(torch.version.cuda or ""),
            "cards": [
                [torch.cuda.get_device_name(at), list(torch.cuda.get_device_capability(at))] for at in range(count)
            ],
            "codes": list(torch.cuda.get_arch_list()) if count else [],
        }
    except (Exception, SystemExit) as error:  # noqa: BLE001  # drivers fail in their own ways
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def platform() -> str:
    """What vLLM takes this machine for: cuda, cpu; "" when it does not say."""
    try:
        return str(importlib.import_module("vllm.platforms").current_platform.device_type)
    except (Exception, SystemExit):  # noqa: BLE001  # told by the import that failed before
        return ""


if __name__ == "__main__":
    main()
