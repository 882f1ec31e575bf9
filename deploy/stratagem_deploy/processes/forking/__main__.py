"""Loads the modules of a program, and forks a process whenever it is to run.

Usage: python -m stratagem_deploy.processes.forking MODULE SOCKET

MODULE has a function `main` without arguments. Orders come on the Unix socket whose descriptor is
given.

MODULE is the first to load torch: it may set before how libraries use cores and memory, which they
read from the environment while they are loaded. Servers that share cores and lack such settings
halved the steps of the demo.
"""

from __future__ import annotations

import importlib
import os
import shlex
import socket
import sys

from setproctitle import getproctitle, setproctitle

from stratagem_deploy.processes.forking.forker import Forker
from stratagem_proto.memory import loading


def main() -> None:
    """Load the modules and serve orders; in a process that was forked, run the program."""
    module, descriptor = sys.argv[1:]
    # Once the environment has changed, the place for a longer title is not found any more.
    getproctitle()
    before = {*os.environ}
    with loading():
        program = importlib.import_module(module)
    own = {name: value for name, value in os.environ.items() if name not in before}
    order = Forker(socket.socket(fileno=int(descriptor)), own).serve()
    if order is not None:
        sys.argv[:] = [module, *order.arguments]
        sys.orig_argv[:] = [sys.executable, "-m", *sys.argv]
        setproctitle(shlex.join(sys.orig_argv))
        program.main()


if __name__ == "__main__":
    main()
