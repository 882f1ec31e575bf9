"""The servers of a local cluster, and those that live in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratagem_proto.serving import server

_EXIT_SECONDS = 1.0


class RestartableServer(ABC):
    """One server that can be stopped and started again at its address.

    A start has two halves, so that several servers can start at the same time, and so has a stop.
    """

    @property
    @abstractmethod
    def runs(self) -> bool:
        """Whether it was started and has not ended."""

    @abstractmethod
    def start(self) -> None:
        """Start it unless it runs."""

    @abstractmethod
    def await_serving(self, timeout: float) -> str:
        """Wait until it answers calls; return the address of its health checks.

        Raises:
            UnavailableError: It ended instead.
            DeadlineExceededError: It needs more than `timeout` seconds.
        """

    @abstractmethod
    def begin_stop(self) -> None:
        """Ask it to drain and stop."""

    @abstractmethod
    def stop(self, grace: float) -> None:
        """Stop it, at the latest after about `grace` seconds."""

    @abstractmethod
    def kill(self) -> None:
        """Stop it without any grace."""

    def restart(self, timeout: float) -> None:
        """Stop it if it runs, and start it at the same address."""
        self.stop(timeout)
        self.start()
        self.await_serving(timeout)


class ServerThread(RestartableServer):
    """A server in this process, on its event-loop thread."""

    def __init__(self, make: Callable[[], server.RpcServer]) -> None:
        """Start nothing yet.

        Args:
            make: Makes the server, again whenever it is to start.
        """
        self._make = make
        self._server: server.RpcServer | None = None

    @property
    def runs(self) -> bool:
        return self._server is not None

    def start(self) -> None:
        if self._server is None:
            made = self._make()
            made.start()
            self._server = made

    def await_serving(self, timeout: float) -> str:
        return self._server.health_address if self._server else ""

    def begin_stop(self) -> None:
        if self._server:
            self._server.announce_stop()

    def stop(self, grace: float) -> None:
        running, self._server = self._server, None
        if running:
            running.stop(grace)

    def kill(self) -> None:
        self.stop(grace=0)


@contextmanager
def serving(servers: Sequence[RestartableServer], timeout: float) -> Iterator[None]:
    """Start servers together, and stop them together at the end of the block.

    What is appended to them meanwhile is stopped with them.

    Raises:
        UnavailableError: A server ended instead of serving.
        DeadlineExceededError: One needs more than `timeout` seconds.
    """
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.await_serving(timeout)
        yield
    finally:
        _stop_all(servers)


def _stop_all(servers: Sequence[RestartableServer]) -> None:
    with ExitStack() as stops:
        for server in servers:
            stops.callback(server.stop, _EXIT_SECONDS)
        for server in servers:
            if server.runs:
                stops.callback(server.begin_stop)
