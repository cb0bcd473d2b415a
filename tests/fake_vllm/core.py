"""A child of the fake vLLM: does nothing, under the name that it is given, until it is killed.

`NAME core.py SERVER_PID orphan|bound`: bound = it dies with the server.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


def main() -> None:
    """Take the name and wait."""
    libc = ctypes.CDLL(None, use_errno=True)
    name, server, bound = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "bound"
    libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
    if bound:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != server:
            return
    os.write(1, b"up\n")
    os.close(1)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
