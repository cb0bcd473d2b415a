"""A stand-in for torch and NCCL: `PYTHONPATH=tests/fake_torch FAKE_TORCH=KNOB python ...` imports it as torch.

KNOB: empty = all is well; hang, fail, wrong (a sum that was not moved), crash (SIGSEGV of rank 1), deaf (the last rank
never joins): each ends at NCCL_P2P_DISABLE=1 when `-p2p` follows; absent = there is no
torch; cpu = it was built without CUDA.
"""

from pathlib import Path

PYTHONPATH = str(Path(__file__).parent)
