"""The embedded engine's process: llama.cpp's HTTP server out of the package xllamacpp, on loopback.

`python -m appliance.engine.embedded_child --model FILE --port P --key-file F --slots-dir D ...`, or by its path.
Imports nothing of the project. Rules:
1. OpenMP reads its environment when it is loaded, so a process without it starts itself again with it. A
   busy-waiting OpenMP makes a shared box 10 times slower (measured).
2. SIGTERM and SIGINT are blocked before the server makes its threads, and awaited afterwards: a stop that
   arrives while the model loads takes effect once it is loaded. Exit code 0, at once and without taking the
   server down first: that waits for the batch in work, and for a client without a stream as long as it stays
   (60 s and more measured). There is nothing to save.
3. xllamacpp or a library missing: the loader's own line on stderr and exit code 1 (failures.py reads it).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
STREAMS = 4
ALIAS = "moe-appliance-demo"
CONTEXT_TOKENS = 32_768
"""All streams together, in one unified cache; one stream gets at most what the model was trained for."""
PREDICT_TOKENS = 512
"""Longest answer when the request sets none: the demo model often does not stop by itself (measured)."""
BATCH_TOKENS = 256
"""Prompt tokens computed in one go, while the other streams stand still. Measured, longest pause of another
stream and prefill: 2048 (the default) 14 s at 365 tok/s, 512 3.8 s at 414, 256 0.6 s at 417."""
CACHE_RAM_MIB = 256
"""xllamacpp's own default is 8192."""
PING_S = 1
"""A stream that is silent during a long prefill shows that it lives; the default is 30."""


def openmp_env(threads: int) -> dict[str, str]:
    """What OpenMP must find in the environment."""
    return {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": str(threads)}


def arguments(argv: list[str]) -> argparse.Namespace:
    """The command line, parsed; exits with 2 when it is wrong."""
    parser = argparse.ArgumentParser(prog="embedded_child", description="The embedded engine of moe-appliance.")
    parser.add_argument("--model", type=Path, required=True, help="a .gguf file")
    parser.add_argument("--port", type=int, required=True, help="loopback port, 0 = any")
    parser.add_argument("--key-file", type=Path, required=True, help="0600 file with the API key")
    parser.add_argument("--slots-dir", type=Path, required=True, help="folder of our own; its files are removed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alias", default=ALIAS, help="the model id that clients see")
    parser.add_argument("--predict", type=int, default=PREDICT_TOKENS, help="longest answer, tokens")
    parser.add_argument("--template", type=Path, help="chat template; without it the model's own")
    return parser.parse_args(argv)


def settle_env(threads: int) -> None:
    """Starts this process again, with the same pid, when OpenMP's environment is not as it must be."""
    wanted = openmp_env(threads)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, sys.orig_argv, os.environ | wanted)  # noqa: S606 - our own argv


def empty_slots(folder: Path) -> None:
    """Makes `folder` ours alone (0700) and free of files: saved slots hold what users wrote."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for entry in folder.iterdir():
        if entry.is_symlink() or not entry.is_dir():
            entry.unlink()


def parameters(options: argparse.Namespace, key: str, params: Any) -> Any:
    """Fills xllamacpp's CommonParams, whose defaults differ from llama-server's."""
    params.model.path = str(options.model)
    params.model_alias = [options.alias]
    params.hostnames = [HOST]
    params.port = options.port
    params.api_keys = [key]
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = STREAMS
    params.kv_unified = True
    params.n_batch = BATCH_TOKENS
    params.n_ubatch = BATCH_TOKENS
    params.n_predict = options.predict
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.use_jinja = True
    if options.template is not None:
        params.chat_template = options.template.read_text(encoding="utf-8")
    # With idle slots cached, only 2 of 4 streams find a prefix that all four hold (measured).
    params.cache_idle_slots = False
    params.cache_ram_mib = CACHE_RAM_MIB
    params.slot_save_path = f"{options.slots_dir}/"
    params.sse_ping_interval = PING_S
    params.ui = False
    return params


def main(argv: list[str]) -> int:
    """Serves until SIGTERM or SIGINT; the exit code."""
    options = arguments(argv)
    settle_env(options.threads)
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        import xllamacpp
    except ImportError as error:
        return _fail(str(error))
    try:
        key = options.key_file.read_text(encoding="utf-8").strip()
        empty_slots(options.slots_dir)
    except OSError as error:
        return _fail(str(error))
    if not key:
        return _fail(f"{options.key_file} holds no key")
    try:
        _server = xllamacpp.Server(parameters(options, key, xllamacpp.CommonParams()))  # serves while it lives
    except RuntimeError as error:  # the reason is in the lines above, from llama.cpp itself
        return _fail(str(error))
    signal.sigwait(signals)
    empty_slots(options.slots_dir)
    os._exit(0)  # with the server as it is; see rule 2


def _fail(line: str) -> int:
    sys.stderr.write(f"{line}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
