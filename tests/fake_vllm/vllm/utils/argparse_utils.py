"""The fake, where the real one is."""

from __future__ import annotations

from argparse import ArgumentParser as FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser"]
