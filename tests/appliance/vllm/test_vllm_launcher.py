"""The launcher: the key is where vLLM asks for it, and nowhere else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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


SERVE = """
import json, sys
class Serve:
    name = "serve"
    def subparser_init(self, parsers):
        parsers.add_parser("serve").add_argument("--headless", action="store_true")
    def validate(self, args):
        print(json.dumps({"validated": args.headless}))
    def cmd(self, args):
        print(json.dumps({"run": args.headless, "log": getattr(args, "logged", False), "name": __name__}))
def cmd_init():
    return [Serve()]
"""


@pytest.mark.parametrize("logged", [False, True])
def test_serve_is_run_without_the_command_line_that_asks_for_a_packages_metadata(tmp_path: Path, logged: bool) -> None:
    # given: vLLM's modules as both releases name them; the later one has its logs set up by the command line
    (tmp_path / "key").write_text("secret\n")
    modules = {
        "utils/argparse_utils": "from argparse import ArgumentParser as FlexibleArgumentParser",
        "entrypoints/serve/utils/api_utils": "def cli_env_setup(): pass",
        "entrypoints/cli/serve": SERVE,
        "logger": "def configure_logging_from_args(args): args.logged = True" if logged else "",
    }
    for name, text in modules.items():
        path = tmp_path / "vllm" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # when
    argv = [sys.executable, "-P", str(LAUNCHER), str(tmp_path / "key"), "vllm.entrypoints.cli.serve", "--headless"]
    done = subprocess.run(argv, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    # then
    validated, run = map(json.loads, done.stdout.splitlines())
    assert validated == {"validated": True}
    assert run == {"run": True, "log": logged, "name": "vllm.entrypoints.cli.serve"}


def test_without_a_key_nothing_is_started(tmp_path: Path) -> None:
    argv = [sys.executable, "-P", str(LAUNCHER), str(tmp_path / "none"), "server"]
    assert subprocess.run(argv, env={}, capture_output=True, check=False).returncode == 1


def test_it_needs_nothing_but_the_standard_library() -> None:
    lines = LAUNCHER.read_text().splitlines()
    names = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert names <= sys.stdlib_module_names
