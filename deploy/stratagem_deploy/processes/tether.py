"""Becomes another program that the kernel ends together with its parent.

Usage: python -I -S tether.py PARENT_PID PROGRAM [ARGUMENT...]

Run as a file, before the program itself, because the only other place to ask the kernel for this is
a function between fork and exec, where a parent with threads may deadlock.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *program = sys.argv[1:]
    if tied_to(int(parent)):
        os.execv(program[0], program)


def tied_to(parent: int) -> bool:
    """Have the kernel end this process with its parent; return whether that still lives."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the kernel was told to watch it.
    return os.getppid() == parent


if __name__ == "__main__":
    main()
