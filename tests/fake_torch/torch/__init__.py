"""What nccl_child needs of torch. A tensor is `scale * pattern + offset`, which is all that it computes with."""

from __future__ import annotations

import os
from dataclasses import dataclass

if os.environ.get("FAKE_TORCH") == "absent":
    raise ModuleNotFoundError("No module named 'torch'")

float32 = "float32"


@dataclass
class Tensor:
    """Elements `scale * (i % 1021) + offset`."""

    count: int
    scale: int = 1
    offset: int = 0

    def __mod__(self, period: int) -> Tensor:
        return self

    def __add__(self, number: int) -> Tensor:
        return Tensor(self.count, self.scale, self.offset + number)

    def __mul__(self, number: int) -> Tensor:
        return Tensor(self.count, self.scale * number, self.offset * number)


def arange(count: int, *, device: str, dtype: str) -> Tensor:
    """0, 1, 2, ..."""
    assert device == f"cuda:{cuda.current}"
    assert dtype == float32
    return Tensor(count)


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether all elements are the same."""
    return one == other


class version:
    """The part of torch.version."""

    cuda = None if os.environ.get("FAKE_TORCH") == "cpu" else "13.0"


class cuda:
    """The part of torch.cuda."""

    current = -1

    @classmethod
    def set_device(cls, device: int) -> None:
        """As torch."""
        assert device < len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
        cls.current = device

    @staticmethod
    def synchronize() -> None:
        """As torch."""

    class nccl:
        """The part of torch.cuda.nccl."""

        @staticmethod
        def version() -> tuple[int, int, int]:
            """As torch."""
            return 2, 28, 9
