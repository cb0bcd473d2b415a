"""Arguments of vLLM's own command line, as an operator writes them in `[engine] args`. Pure.

vLLM reads `--max_num_seqs`, `--max-num-seqs=4`, beginnings of names that are unique, short names, `--no-` before a
switch, and `--compilation-config.mode=0` for a part of a JSON value. So one setting has several spellings: `setting`
gives the one name that they share.
Source: vLLM 0.26.0, utils/argparse_utils.py; ALIASES: its parser (tests/data/vllm-0.26.0-parser.json).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

ALIASES = {
    "-ac": "--attention-config",
    "-asc": "--api-server-count",
    "-cc": "--compilation-config",
    "-dc": "--diffusion-config",
    "-dcp": "--decode-context-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpa": "--data-parallel-address",
    "-dpb": "--data-parallel-backend",
    "-dpe": "--data-parallel-external-lb",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpl": "--data-parallel-size-local",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-dpn": "--data-parallel-rank",
    "-dpp": "--data-parallel-rpc-port",
    "-dpr": "--data-parallel-start-rank",
    "-ep": "--enable-expert-parallel",
    "-n": "--nnodes",
    "-pcp": "--prefill-context-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-q": "--quantization",
    "-r": "--node-rank",
    "-sc": "--speculative-config",
    "-tp": "--tensor-parallel-size",
}
OURS = {
    "--api-key": "the appliance makes a new key at every start and gives it to vLLM in another way",
    "--host": "vLLM listens on a Unix socket that nobody else can open",
    "--port": "vLLM listens on a Unix socket that nobody else can open",
    "--uds": "the appliance chooses the socket, in its runtime folder",
    "--root-path": "the gateway asks for the paths as they are",
    "--ssl-keyfile": "nothing but the gateway reaches vLLM, over a Unix socket",
    "--ssl-certfile": "nothing but the gateway reaches vLLM, over a Unix socket",
    "--ssl-ca-certs": "nothing but the gateway reaches vLLM, over a Unix socket",
    "--ssl-cert-reqs": "nothing but the gateway reaches vLLM, over a Unix socket",
    "--ssl-ciphers": "nothing but the gateway reaches vLLM, over a Unix socket",
    "--enable-ssl-refresh": "nothing but the gateway reaches vLLM, over a Unix socket",
    "--config": "a file of arguments would hide them from what is checked here: write them out",
    "--headless": "boxes that only help have [engine.nodes]",
}
"""What is refused in args, and why."""
SPECULATIVE = frozenset({"--speculative-config", "--spec-method", "--spec-model", "--spec-tokens"})
"""Settings of a draft."""
_DRAFTED = "num_speculative_tokens"
_NUMBER = re.compile(r"-\d")
_FEW = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class Argument:
    """A flag as it was written, and the words behind it."""

    name: str
    values: tuple[str, ...]

    @property
    def setting(self) -> str:
        """Which setting it is, in the spelling that all of them share."""
        return setting(self.name)


def setting(flag: str) -> str:
    """The long name of a flag, without `--no-`, without the part of a JSON value that it names."""
    name = flag.partition("=")[0]
    head = name.partition(".")[0]
    name = ALIASES.get(head, head).replace("_", "-")
    return "--" + name.removeprefix("--no-") if name.startswith("--no-") else name


def parse(words: Sequence[str]) -> tuple[Argument, ...]:
    """Flags with their values. Raises ValueError: a word belongs to no flag, or a flag is one of OURS."""
    found: list[Argument] = []
    for word in words:
        if word.startswith("-") and not _NUMBER.match(word):
            name, equals, value = word.partition("=")
            _refuse(name)
            found.append(Argument(name, (value,) if equals else ()))
        elif not found:
            raise ValueError(f"args: {word!r} belongs to no flag; the first word begins with --")
        else:
            last = found[-1]
            found[-1] = Argument(last.name, (*last.values, word))
    return tuple(found)


def draft_tokens(words: Sequence[str], otherwise: int) -> int | None:
    """Tokens that a draft puts into each step of a stream: `otherwise` where nothing is said of one; None = there is
    one, and the number is left to it. Raises ValueError as `parse`."""
    said = [argument for argument in parse(words) if argument.setting in SPECULATIVE]
    numbers = [number for argument in said if (number := _drafted(argument)) is not None]
    return (numbers[-1] if numbers else None) if said else otherwise


def _drafted(argument: Argument) -> int | None:
    value = argument.values[0] if argument.values else ""
    part = argument.name.partition(".")[2].replace("-", "_")
    if argument.setting == "--speculative-config" and not part:
        try:
            keys = json.loads(value)
        except ValueError:
            return None  # vLLM says what is wrong with it
        named = {str(key).replace("-", "_"): one for key, one in keys.items()} if isinstance(keys, dict) else {}
        value = str(named.get(_DRAFTED, ""))
    elif argument.setting != "--spec-tokens" and part != _DRAFTED:
        return None
    return int(value) if _FEW.fullmatch(value) else None


def _refuse(name: str) -> None:
    meant = setting(name)
    if not meant.strip("-"):
        raise ValueError(f"args: {name!r} is no flag")
    for ours, why in OURS.items():
        if meant == ours or (meant.startswith("--") and ours.startswith(meant)):
            raise ValueError(f"args: {name} is not for you to set: {why}")
