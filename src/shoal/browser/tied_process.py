"""Runs a program that the kernel kills when its parent dies, also by SIGKILL.

A script of its own: `python tied_process.py PARENT PROGRAM ARGUMENTS…`, with 0 for an unknown parent. It imports
nothing of shoal, so that it starts in a few milliseconds."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Become the program, tied to the parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # A parent that died before the call above causes no signal.
        if parent and os.getppid() != parent:
            sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 -- the program is the operator's


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
