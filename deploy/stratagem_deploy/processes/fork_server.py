"""Starting a process by a fork of one that has loaded the modules of its program.

To import torch takes about two seconds of a core, and a fork some milliseconds. What libraries read
from the environment while they are loaded, they read in the process that is forked; so each
environment has a process of its own.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from weakref import finalize

from stratagem_deploy.processes.forker import ENDED, Order, receive_number, send_number
from stratagem_deploy.processes.process import Child, Process, Start, start_program

_FORKER = "stratagem_deploy.processes.forker"

# Libraries do not read these while they are loaded, and they change from process to process.
_READ_LATER = ("STRATAGEM_", "TF_CONFIG", "PYTEST_", "TORCHINDUCTOR_CACHE_DIR")
# Each has the memory of a process that has loaded torch.
_MOST = 4
_LOAD_SECONDS = 120.0
# Elsewhere a fork is not safe once frameworks are loaded, or there is none.
_CAN_FORK = sys.platform == "linux"


class ForkServer:
    """A process that forks others, all of which run one program."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        """Start it; it loads the modules meanwhile.

        Args:
            module: The module of the program; it has a function `main` without arguments.
            environment: All of its environment.
        """
        self._lock = threading.Lock()
        self._orders, theirs = socket.socketpair()
        finalize(self, self._orders.close)
        with theirs:
            descriptor = theirs.fileno()
            command = [sys.executable, "-m", _FORKER, module, str(descriptor)]
            start = partial(start_program, inherited=[descriptor])
            self._process = Process(
                f"fork server of {module}", command, environment=environment, start=start
            )

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.exit_code is None

    def fork(self, order: Order, output: int, errors: int) -> Child | None:
        """Fork a process, once the modules are loaded; return None if the fork server has ended."""
        ours, theirs = socket.socketpair()
        ours.settimeout(_LOAD_SECONDS)
        try:
            with theirs, self._lock:
                order.send(self._orders, [output, errors, theirs.fileno()])
            pid = receive_number(ours)
        except OSError:
            # It must not fork later what is started in another way now.
            self._process.send(signal.SIGKILL)
            pid = None
        if pid is None:
            ours.close()
            return None
        ours.settimeout(None)
        return _Forked(pid, ours, self)


class _Forked:
    """A process that a fork server forked, and that ends with it."""

    def __init__(self, pid: int, control: socket.socket, server: ForkServer) -> None:
        self.pid = pid
        self._control = control
        # Without its last reference, the fork server ends.
        self._server = server

    def await_end(self) -> None:
        with suppress(OSError):
            receive_number(self._control)

    def reap(self) -> int:
        with self._control, suppress(OSError):
            send_number(self._control, ENDED)
            code = receive_number(self._control)
            if code is not None:
                return code
        return -signal.SIGKILL


# Those of this process, of the programs and environments used last; the one first that was used the
# longest time ago.
_servers: dict[object, ForkServer] = {}
_choosing = threading.Lock()


def _server_for(module: str, environment: Mapping[str, str]) -> ForkServer:
    """Return the fork server of a program and an environment; it may still load the modules."""
    read_early = frozenset(
        item for item in environment.items() if not item[0].startswith(_READ_LATER)
    )
    key = module, os.getpid(), read_early
    with _choosing:
        server = _servers.pop(key, None)
        if server is None or not server.runs:
            server = ForkServer(module, environment)
        _servers[key] = server
        if len(_servers) > _MOST:
            del _servers[next(iter(_servers))]
        return server


def start_forked(start: Start) -> Child:
    """Start `python -m MODULE` by a fork, or in the usual way where that cannot be.

    The module has a function `main` without arguments, and calls it only if it is the program.
    """
    _, _, module, *arguments = start.command
    if _CAN_FORK:
        path = [folder or os.getcwd() for folder in sys.path]
        order = Order(arguments, start.environment, os.getcwd(), path)
        server = _server_for(module, start.environment)
        child = server.fork(order, start.output, start.errors)
        if child:
            return child
    return start_program(start)


def prepare(module: str, environment: Mapping[str, str]) -> None:
    """Begin to load the modules of a program that `start_forked` is going to start.

    Args:
        module: The module of the program.
        environment: What its environment has besides ours.
    """
    if _CAN_FORK:
        _server_for(module, os.environ | environment)
