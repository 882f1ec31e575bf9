"""A process that has loaded the modules of a program, and forks a process for each order.

Usage: python -m stratagem_deploy.processes.forker MODULE SOCKET

MODULE has a function `main` without arguments. Orders come on the Unix socket whose descriptor is
given.

MODULE is the first to load torch: it may set before how libraries use cores and memory, which they
read from the environment while they are loaded. Servers that share cores and lack such settings
halved the steps of the demo.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import shlex
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from setproctitle import getproctitle, setproctitle

from stratagem_deploy.processes.tether import tied_to
from stratagem_proto.memory import loading

_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!i")
_DESCRIPTORS = 3

_IDLE_SECONDS = 300.0
"""How long it waits for the next order when all that it forked have ended."""

_SIGNALS = 4096

ENDED = 0
"""What is sent of a process that has ended and is not reaped yet, or asked for when it may be."""


@dataclass(frozen=True)
class Order:
    """A process to be forked.

    Attributes:
        arguments: Arguments of its program.
        environment: All of its environment.
        folder: The folder that it works in.
        import_path: Where it imports from.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    import_path: Sequence[str]

    def send(self, channel: socket.socket, descriptors: Sequence[int]) -> None:
        """Send it.

        Args:
            channel: Where orders go.
            descriptors: Its standard output, its standard error, and a socket on which come first
                its id, then `ENDED`, and when asked for, how.
        """
        content = json.dumps(asdict(self)).encode()
        socket.send_fds(channel, [_LENGTH.pack(len(content))], descriptors)
        channel.sendall(content)


def send_number(other: socket.socket, number: int) -> None:
    other.sendall(_NUMBER.pack(number))


def receive_number(other: socket.socket) -> int | None:
    """Wait for a number and return it, or None if the other end is gone."""
    data = other.recv(_NUMBER.size, socket.MSG_WAITALL)
    return int(*_NUMBER.unpack(data)) if len(data) == _NUMBER.size else None


class Forker:
    """Forks a process for each order, and sends how each of them ended.

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
        # Those whose end was not sent to anybody.
        self._running: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for end in self._woken, self._waker:
            end.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._when_readable(orders, self._fork)
        self._when_readable(self._woken, self._send_ends)

    def serve(self) -> Order | None:
        """Fork until there are no more orders; in a process that was forked, return its order."""
        while events := self._selector.select(None if self._children else _IDLE_SECONDS):
            for key, _ in events:
                order: Order | None = key.data()
                if order is not None:
                    return order
        return None

    def _when_readable(self, end: socket.socket, act: Callable[[], Order | None]) -> None:
        self._selector.register(end, selectors.EVENT_READ, act)

    def _fork(self) -> Order | None:
        head, descriptors, _, _ = socket.recv_fds(self._orders, _LENGTH.size, _DESCRIPTORS)
        if len(head) < _LENGTH.size:
            self._selector.unregister(self._orders)
            return None
        (length,) = _LENGTH.unpack(head)
        order = Order(**json.loads(self._orders.recv(length, socket.MSG_WAITALL)))
        output, errors, control = descriptors
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            # What this process has of the one that forked it.
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            for end in self._orders, self._woken, self._waker, *self._children.values():
                end.close()
            os.close(control)
            order = replace(order, environment={**self._own, **order.environment})
            _become(order, parent, output, errors)
            return order
        os.close(output)
        os.close(errors)
        self._children[pid] = starter = socket.socket(fileno=control)
        self._running.add(pid)
        self._when_readable(starter, lambda: self._reap(pid))
        with suppress(OSError):
            send_number(starter, pid)
        return None

    def _send_ends(self) -> None:
        self._woken.recv(_SIGNALS)
        for pid in [*self._running]:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                self._running.remove(pid)
                with suppress(OSError):
                    send_number(self._children[pid], ENDED)

    def _reap(self, pid: int) -> None:
        control = self._children.pop(pid)
        self._running.discard(pid)
        self._selector.unregister(control)
        with control, suppress(OSError):
            if receive_number(control) is not None:
                send_number(control, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


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
    # Other random numbers than in other forks; Python sees to its own.
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()


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
