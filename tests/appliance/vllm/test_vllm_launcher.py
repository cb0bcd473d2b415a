"""The launcher: the key is where vLLM asks for it, and nowhere else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from appliance.engine.vllm.adapter import LAUNCHER

MODULE = """
import json, os, subprocess, sys
child = subprocess.run([sys.executable, "-c", "import os; print(os.environ.get('VLLM_API_KEY'))"],
                       capture_output=True, text=True)
shown = open("/proc/self/environ", "rb").read()
print(json.dumps({"key": os.environ["VLLM_API_KEY"], "argv": sys.argv[1:], "name": __name__,
                  "child": child.stdout.strip(), "in_proc": b"VLLM_API_KEY" in shown, "umask": os.umask(0)}))
"""


def test_vllm_finds_the_key_and_its_children_and_proc_do_not(tmp_path: Path) -> None:
    # given: a key file and a module in place of vLLM's
    (tmp_path / "key").write_text("secret\n")
    (tmp_path / "server.py").write_text(MODULE)
    # when
    argv = [sys.executable, "-P", str(LAUNCHER), str(tmp_path / "key"), "server", "--uds", "/x"]
    done = subprocess.run(argv, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    # then
    assert json.loads(done.stdout) == {
        "key": "secret",
        "argv": ["--uds", "/x"],
        "name": "__main__",
        "child": "None",
        "in_proc": False,
        "umask": 0o077,
    }


def test_without_a_key_nothing_is_started(tmp_path: Path) -> None:
    argv = [sys.executable, "-P", str(LAUNCHER), str(tmp_path / "none"), "server"]
    assert subprocess.run(argv, env={}, capture_output=True, check=False).returncode == 1


def test_it_needs_nothing_but_the_standard_library() -> None:
    lines = LAUNCHER.read_text().splitlines()
    names = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert names <= sys.stdlib_module_names
