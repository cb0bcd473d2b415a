"""Measures pinned memory and copies of NVIDIA cards through the driver's own library, libcuda.so.1.

Touches the cards, its own memory policy and affinity, /proc/self/numa_maps. Run by path, with any Python from 3.8:
`python -I -S cuda_child.py SPEC`; SPEC is the JSON that `deep_copies` makes (see `main`); nothing imports it.

Rules:
- Standard library and ctypes only: no toolkit, no torch, nothing of this project.
- One line of JSON an event, flushed at once: what was measured before a hang is kept, and the last `step` says where.
- SIGALRM's default action ends it after `limit_s`, inside a call of the driver too, so a killed parent leaves nothing.
- An error of CUDA ends the work on its card and nothing else. A failed pin is not tried again: on some drivers it
  spoils what the process pins later.

Where the memory lies: pages come from the node of the thread that allocates, so that thread runs on the node's CPUs
while it pins (sched_setaffinity) and prefers the node's memory (set_mempolicy, for nodes without CPUs of ours). The
first works in containers whose seccomp filter refuses the second; when both are refused the kernel chooses.

Events: step{text}; pinned{card,bytes,s}; rate{kind,card,gb_s} of kind h2d, d2h, far, together; failed{card,call,error},
card null = none could be asked; done.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE
BLOCKING_SYNC = 1  # CU_EVENT_BLOCKING_SYNC: waiting does not spin
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
MPOL_DEFAULT, MPOL_PREFERRED = 0, 1
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""System call numbers. Source: Linux, arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h."""
ROUND_S = 0.25
"""A round is so many copies as take about this long: long against the microseconds between two cards' starts."""
ROUNDS_MAX = 20


class CudaError(Exception):
    """A call of the driver's library failed; `name` is CUDA's own for the error."""

    def __init__(self, call: str, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.call = call
        self.name = name


class Cuda:
    """The driver's library, with errors as exceptions. Raises CudaError when it cannot be loaded."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError("dlopen", str(error)) from None

    def call(self, function: str, *arguments: Any) -> None:
        """Call `function`; raises CudaError."""
        try:
            code = getattr(self.library, function)(*arguments)
        except AttributeError:
            raise CudaError(function, "not in this driver") from None
        if code != 0:
            name = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(name))
            raise CudaError(function, (name.value or b"").decode("utf-8", "replace") or f"error {code}")


class Card:
    """One card: its context, a stream, two events, a device buffer, one host buffer at a time."""

    def __init__(self, cuda: Cuda, spec: dict[str, Any], size: int) -> None:
        self.cuda = cuda
        self.index: int = spec["index"]
        self.bus_id: str = spec["bus_id"]
        self.size = size
        self.context = ctypes.c_void_p()
        self.stream = ctypes.c_void_p()
        self.first = ctypes.c_void_p()
        self.last = ctypes.c_void_p()
        self.device = ctypes.c_uint64()
        self.host = ctypes.c_void_p()

    def open(self) -> None:
        """Make everything but the host buffer."""
        number = ctypes.c_int()
        self.cuda.call("cuDeviceGetByPCIBusId", ctypes.byref(number), self.bus_id.encode())
        self.cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), number)
        self.use()
        self.cuda.call("cuStreamCreate", ctypes.byref(self.stream), ctypes.c_uint(NON_BLOCKING))
        for event in (self.first, self.last):
            self.cuda.call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(BLOCKING_SYNC))
        self.cuda.call("cuMemAlloc_v2", ctypes.byref(self.device), ctypes.c_size_t(self.size))

    def use(self) -> None:
        """Make the card's context the thread's."""
        self.cuda.call("cuCtxSetCurrent", self.context)

    def pin(self) -> float:
        """Allocate the host buffer; seconds."""
        self.use()
        started = time.monotonic()
        size = ctypes.c_size_t(self.size)
        self.cuda.call("cuMemHostAlloc", ctypes.byref(self.host), size, ctypes.c_uint(PORTABLE))
        return time.monotonic() - started

    def unpin(self) -> None:
        """Free the host buffer."""
        self.use()
        self.cuda.call("cuMemFreeHost", self.host)
        self.host = ctypes.c_void_p()

    def mark(self, event: ctypes.c_void_p) -> None:
        """Record `event` on the stream."""
        self.use()
        self.cuda.call("cuEventRecord", event, self.stream)

    def copy(self, to_device: bool) -> None:
        """Queue one copy of the whole buffer."""
        self.use()
        size = ctypes.c_size_t(self.size)
        if to_device:
            self.cuda.call("cuMemcpyHtoDAsync_v2", self.device, self.host, size, self.stream)
        else:
            self.cuda.call("cuMemcpyDtoHAsync_v2", self.host, self.device, size, self.stream)

    def took_s(self) -> float:
        """Wait for the last event; seconds since the first. Raises CudaError when CUDA says that no time passed."""
        self.use()
        self.cuda.call("cuEventSynchronize", self.last)
        took_ms = ctypes.c_float()
        self.cuda.call("cuEventElapsedTime", ctypes.byref(took_ms), self.first, self.last)
        if not took_ms.value > 0:
            raise CudaError("cuEventElapsedTime", f"{took_ms.value} ms for {self.size} bytes")
        return took_ms.value / 1e3


def burst(cards: Sequence[Card], copies: dict[int, int], to_device: bool) -> dict[int, float]:
    """So many copies of each card, all started together; seconds by card index."""
    for card in cards:
        card.mark(card.first)
    for number in range(max(copies[card.index] for card in cards)):
        for card in cards:
            if number < copies[card.index]:
                card.copy(to_device)
    for card in cards:
        card.mark(card.last)
    return {card.index: card.took_s() for card in cards}


def rates(cards: Sequence[Card], copies: dict[int, int], to_device: bool, seconds: float) -> dict[int, float]:
    """GB/s of each card, the median of rounds that together take `seconds`."""
    found: dict[int, list[float]] = {card.index: [] for card in cards}
    spent_s = 0.0
    for _ in range(ROUNDS_MAX):
        took_s = burst(cards, copies, to_device)
        for card in cards:
            found[card.index].append(copies[card.index] * card.size / took_s[card.index] / 1e9)
        spent_s += max(took_s.values())
        if spent_s >= seconds:
            break
    return {index: statistics.median(values) for index, values in found.items()}


def copies_a_round(card: Card) -> int:
    """How many copies fill a round. The first copy, which finds the link asleep, is not the one that counts."""
    for _ in range(2):
        took_s = burst([card], {card.index: 1}, True)[card.index]
    return max(1, round(ROUND_S / took_s))


def set_mempolicy(mode: int, node: int | None) -> bool:
    """Set the thread's memory policy; whether the kernel took it."""
    number = SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return False
    mask, length = None, 0
    if node is not None:
        bits = 8 * ctypes.sizeof(ctypes.c_ulong)
        mask = (ctypes.c_ulong * (node // bits + 1))()
        mask[node // bits] = 1 << node % bits
        length = len(mask) * bits + 1  # the kernel reads one bit less than it is told of
    refused = ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_int(mode), mask, ctypes.c_ulong(length))
    return bool(refused == 0)


@contextlib.contextmanager
def placed_on(place: dict[str, Any] | None) -> Iterator[bool]:
    """Inside, new pages of this thread come from a node, {node, cpus}; yields whether one of the two ways was taken."""
    if place is None:
        yield False
        return
    before = os.sched_getaffinity(0)
    moved = False
    with contextlib.suppress(OSError, ValueError):
        os.sched_setaffinity(0, place["cpus"])
        moved = True
    preferred = set_mempolicy(MPOL_PREFERRED, place["node"])
    try:
        yield moved or preferred
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)
        if preferred:
            set_mempolicy(MPOL_DEFAULT, None)


def node_of(address: int, root: str) -> int | None:
    """The node that holds most pages of the mapping at `address`; None when the kernel does not say.

    Source: numa(7), /proc/PID/numa_maps: a line is the mapping's start, its policy, then words such as N0=262144.
    """
    best = (-1, "")
    with contextlib.suppress(OSError, ValueError), Path(root, "proc/self/numa_maps").open() as lines:
        for line in lines:
            start = int(line.split(" ", 1)[0], 16)
            if best[0] < start <= address:
                best = (start, line)
    pages = [word[1:].split("=") for word in best[1].split() if word[0] == "N" and word[1:].replace("=", "").isdigit()]
    return max(((int(count), int(node)) for node, count in pages), default=(0, None))[1]


def say(event: str, **fields: Any) -> None:
    """Write one event."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def step(text: str) -> None:
    """Say what begins now: the last one before a hang is where it hangs."""
    say("step", text=text)


def measure_alone(card: Card, spec: dict[str, Any], root: str, seconds: float) -> int:
    """Pin, then copy in both directions, alone; how many copies fill a round."""
    step(f"card {card.index}: making its context")
    card.open()
    step(f"card {card.index}: pinning {card.size >> 20} MiB")
    with placed_on(spec.get("near")):
        took_s = card.pin()
    say("pinned", card=card.index, bytes=card.size, s=took_s, node=node_of(card.host.value or 0, root))
    step(f"card {card.index}: host to device")
    copies = copies_a_round(card)
    say_rates("h2d", rates([card], {card.index: copies}, True, seconds))
    step(f"card {card.index}: device to host")
    say_rates("d2h", rates([card], {card.index: copies}, False, seconds / 3))
    return copies


def measure_far(card: Card, spec: dict[str, Any], root: str, seconds: float) -> None:
    """The same copy from memory of another node; silent where the memory cannot be put there."""
    far = spec.get("far")
    if far is None:
        return
    step(f"card {card.index}: from memory of node {far['node']}")
    near, card.host = card.host, ctypes.c_void_p()
    try:
        with placed_on(far) as asked:
            if not asked:
                return
            card.pin()
        if node_of(card.host.value or 0, root) in (None, far["node"]):
            copies = copies_a_round(card)
            say_rates("far", rates([card], {card.index: copies}, True, seconds / 2))
        card.unpin()
    finally:
        card.host = near


def say_rates(kind: str, found: dict[int, float]) -> None:
    """One event a card."""
    for index, gb_s in found.items():
        say("rate", kind=kind, card=index, gb_s=round(gb_s, 3))


def measure(spec: dict[str, Any]) -> None:
    """Every card by itself, then all that answered at once. Raises CudaError for what is no single card's."""
    step("starting CUDA")
    cuda = Cuda()
    cuda.call("cuInit", ctypes.c_uint(0))
    ready: list[Card] = []
    copies: dict[int, int] = {}
    for one in spec["cards"]:
        card = Card(cuda, one, spec["bytes"])
        try:
            copies[card.index] = measure_alone(card, one, spec["root"], spec["seconds"])
            ready.append(card)
            measure_far(card, one, spec["root"], spec["seconds"])
        except CudaError as error:
            say("failed", card=card.index, call=error.call, error=error.name)
    if len(ready) > 1:
        step("all cards at once")
        say_rates("together", rates(ready, copies, True, spec["seconds"]))


def main() -> int:
    """SPEC: {cards: [{index, bus_id, near?, far?: {node, cpus}}], bytes, seconds, limit_s, root}."""
    spec = json.loads(sys.argv[1])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(spec["limit_s"]))
    try:
        measure(spec)
    except CudaError as error:
        say("failed", card=None, call=error.call, error=error.name)
    else:
        say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
