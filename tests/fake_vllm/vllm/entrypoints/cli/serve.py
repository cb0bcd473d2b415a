"""The fake, where the real one is: `serve`, as vLLM's command line takes it up."""

from __future__ import annotations

import argparse
import os

from tests.fake_vllm import KNOBS, server
from tests.fake_vllm.headless import run
from tests.fake_vllm.knobs import read


class ServeSubcommand:
    """Only a headless start; the other one is api_server.py's."""

    name = "serve"

    @staticmethod
    def cmd(args: argparse.Namespace) -> None:
        """Be a headless node."""
        run(args, read(os.environ.get(KNOBS, "")))

    def validate(self, args: argparse.Namespace) -> None:
        """As the real one: a headless start has no API server."""
        if not args.headless:
            raise ValueError("the fake vLLM's `serve` is for --headless")

    def subparser_init(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """The flags of the real parser."""
        server.add_flags(subparsers.add_parser(self.name, add_help=False))


def cmd_init() -> list[ServeSubcommand]:
    """As the real one."""
    return [ServeSubcommand()]
