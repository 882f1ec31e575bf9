"""The loop of a process that forks others."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from stratagem_deploy.processes.forking.wire import ENDED, Order, heard, next_order, tell
from stratagem_deploy.processes.tether import tied_to

_IDLE_SECONDS = 300.0
"""How long it waits for the next order when all that it forked have ended."""

_SIGNALS = 4096


class Forker:
    """Forks a process for each order, and tells how each of them ended.

    It has no threads that could hold a lock while it forks.
    """

    def __init__(self, orders: socket.socket, own: Mapping[str, str]) -> None:
        """Serve no order yet.

        Args:
            orders: The socket on which they come.
            own: What the program has set of its environment, where its orders set nothing.
        """
        self._orders, self._own = orders, own
        self._children: dict[int, socket.socket] = {}
        # Those of whose end nobody was told.
        self._running: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for end in self._woken, self._waker:
            end.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._attend(orders, self._fork)
        self._attend(self._woken, self._tell_ends)

    def serve(self) -> Order | None:
        """Fork until there are no more orders; in a process that was forked, return its order."""
        while events := self._selector.select(None if self._children else _IDLE_SECONDS):
            for key, _ in events:
                order: Order | None = key.data()
                if order is not None:
                    return order
        return None

    def _attend(self, end: socket.socket, act: Callable[[], Order | None]) -> None:
        self._selector.register(end, selectors.EVENT_READ, act)

    def _fork(self) -> Order | None:
        received = next_order(self._orders)
        if received is None:
            self._selector.unregister(self._orders)
            return None
        order, (output, errors, control) = received
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            self._leave()
            os.close(control)
            order = replace(order, environment={**self._own, **order.environment})
            _become(order, parent, output, errors)
            return order
        os.close(output)
        os.close(errors)
        self._keep(pid, socket.socket(fileno=control))
        return None

    def _keep(self, pid: int, control: socket.socket) -> None:
        self._children[pid] = control
        self._running.add(pid)
        self._attend(control, lambda: self._reap(pid))
        with suppress(OSError):
            tell(control, pid)

    def _tell_ends(self) -> None:
        self._woken.recv(_SIGNALS)
        for pid in [*self._running]:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                self._running.remove(pid)
                with suppress(OSError):
                    tell(self._children[pid], ENDED)

    def _reap(self, pid: int) -> None:
        control = self._children.pop(pid)
        self._running.discard(pid)
        self._selector.unregister(control)
        with control, suppress(OSError):
            if heard(control) is not None:
                tell(control, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def _leave(self) -> None:
        """Close, in a process that was forked, what it has of the one that forked it."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for end in self._orders, self._woken, self._waker, *self._children.values():
            end.close()


def _become(order: Order, parent: int, output: int, errors: int) -> None:
    """Give a process that was just forked what its order says."""
    if not tied_to(parent):
        os._exit(1)
    os.setsid()
    for given, standard in (output, sys.stdout), (errors, sys.stderr):
        os.dup2(given, standard.fileno())
    for given in {output, errors}:
        os.close(given)
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.environment)
    sys.path[:] = order.import_path
    _draw_other_numbers()


def _draw_other_numbers() -> None:
    """Have libraries that are loaded draw other random numbers than in other forks.

    Python does by itself.
    """
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
