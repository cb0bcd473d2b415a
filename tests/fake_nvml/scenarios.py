"""The boxes of the issue's list, each one change away from two good cards. Pure.

`FakeNvml(tmp_path, scenarios.SYS_TWO_NODES)`.
"""

from __future__ import annotations

from dataclasses import replace

from tests.fake_nvml.setup import CARDS, GIB, Process, Setup

HELD_PID = 4_190_001
"""Above what the kernel gives out here, so that it is nobody's."""
_ONE, _TWO = CARDS

TWO_GOOD = Setup()
SYS_TWO_NODES = Setup(cards=(_ONE, replace(_TWO, numa_node=1, cpus="32-63")), relation="SYS")
X8_LINK = Setup(cards=(_ONE, replace(_TWO, width=8)))
SLEEPY_LINK = Setup(cards=(replace(_ONE, gen_idle=1), replace(_TWO, gen_idle=1)))
"""Generation 1 while idle, 5 while `FakeNvml.load` exists."""
SLOW_LINK = Setup(cards=(_ONE, replace(_TWO, gen_idle=2, gen_load=2)))
HELD_MEMORY = Setup(
    cards=(
        replace(_ONE, used_bytes=2 * GIB, processes=(Process(HELD_PID, 2 * GIB, "VLLM::Worker_TP0"),)),
        _TWO,
    )
)
MISMATCH = Setup(driver="580.105.08", module="580.95.05", init=18)
NOT_LOADED = Setup(module="", init=9)
NO_LIBRARY = Setup(library=False)
NO_DRIVER = Setup(library=False, module="")
MIG_ON = Setup(cards=(_ONE, replace(_TWO, mig=(1, 1))))
ONE_MISSING = Setup(missing=1)
"""The kernel has registered two cards, the driver counts one."""
ONE_CARD = Setup(cards=(_ONE,))
ONE_LOST = Setup(cards=(_ONE, replace(_TWO, lost=15)))
HANGS = Setup(hang="nvmlDeviceGetEnforcedPowerLimit")
HANGS_AT_INIT = Setup(hang="nvmlInitWithFlags")
CRASHES = Setup(crash="nvmlDeviceGetMemoryInfo_v2")
