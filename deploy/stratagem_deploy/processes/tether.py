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
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the kernel was told to watch it.
    if os.getppid() == int(parent):
        os.execv(program[0], program)


if __name__ == "__main__":
    main()
