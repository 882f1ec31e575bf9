"""What stands where readers have the clock, threads, locks and channels of the system."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any
from unittest.mock import patch

from stratagem_psserver.rpcs import publication
from stratagem_reader import (
    cluster_source,
    lookup_client,
    lookups,
    pins,
    reader,
    republication,
    store_source,
)
from tests.simulation.network import Network, Sent
from tests.simulation.readers.blocking import BlockingThread, here, sleep, wait
from tests.simulation.readers.streams import StreamedCall
from tests.simulation.servers import SimulatedServer
from tests.simulation.virtual_loop import VirtualLoop

_EPOCH = 1_000_000_000.0


class VirtualTime:
    """Stands where the module `time` does.

    Args:
        loop: Whose time it is.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self.monotonic = loop.time
        self._loop = loop

    def time(self) -> float:
        """Return the seconds since 1970."""
        return _EPOCH + self._loop.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        sleep(seconds)

    def milliseconds(self) -> int:
        """Return the milliseconds since 1970."""
        return int(self.time() * 1000)


class Condition:
    """Stands where `threading.Condition` does, or a lock.

    A thread is interrupted only where it waits, so that nothing has to be locked.
    """

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[bool]] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until somebody notifies; return whether that was in time."""
        loop = here().process.world.loop
        notified: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(notified)
        if timeout is not None:
            loop.call_later(timeout, _set, notified, False)
        return here().wait_for(notified)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until a predicate holds; return what it returned last."""
        found = predicate()
        if found:
            return found
        loop = here().process.world.loop
        give_up_at = None if timeout is None else loop.time() + timeout
        while not (found := predicate()):
            left = None if give_up_at is None else give_up_at - loop.time()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify_all(self) -> None:
        """Let all go on that wait."""
        waiting, self._waiting = self._waiting, []
        for notified in waiting:
            _set(notified, True)


def _set(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


class Event:
    """Stands where `threading.Event` does."""

    def __init__(self) -> None:
        self._is_set, self._changed = False, Condition()

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it."""
        self._is_set = True
        self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; return whether it is."""
        return bool(self._changed.wait_for(self.is_set, timeout))


class Thread:
    """Stands where `threading.Thread` does."""

    def __init__(self, target: Callable[[], Any], name: str = "", daemon: bool = True) -> None:
        self._target, self._process = target, here().process
        self._running: BlockingThread | None = None

    def start(self) -> None:
        """Begin."""
        self._running = self._process.begin(self._target)

    def join(self, timeout: float | None = None) -> None:
        """Wait until it is over."""
        if self._running is not None and not self._running.is_over:
            wait(asyncio.wait([self._running.over], timeout=timeout))


class Threading:
    """Stands where the module `threading` does."""

    Condition, Event, Lock, Thread = Condition, Event, Condition, Thread

    @staticmethod
    def current_thread() -> object:
        """Return what no thread is that was made here: none of them closes what it follows."""
        return None


class Pool:
    """Stands where a `ThreadPoolExecutor` does."""

    def __init__(self, *_: object) -> None:
        self._process = here().process

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Outcome:
        """Begin some work."""
        return Outcome(self._process.begin(lambda: work(*arguments)))

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        """Do nothing: what was begun ends by itself."""


class Outcome:
    """Stands where a `Future` of an executor does."""

    def __init__(self, thread: BlockingThread) -> None:
        self.thread = thread

    def result(self) -> Any:
        """Wait for it."""
        return here().wait_for(self.thread.over)


class SimulatedChannel:
    """Stands where a `LastingChannel` does, and where the channel that it gives.

    Args:
        network: Carries the calls.
        server: Whom they are for.
    """

    def __init__(self, network: Network, server: SimulatedServer) -> None:
        self._network, self._server = network, server

    def get(self) -> SimulatedChannel:
        """Return itself."""
        return self

    def unary_unary(self, path: str) -> Callable[..., bytes]:
        """Return what calls a method."""

        def call(message: bytes, timeout: float) -> bytes:
            caller = here().process.name
            sent = Sent(path, [message])
            return wait(self._network.call(caller, self._server, sent, timeout))[0]

        return call

    def unary_stream(self, path: str) -> Callable[..., Iterator[bytes]]:
        """Return what calls a method that answers with a stream."""

        def call(message: bytes, timeout: float) -> Iterator[bytes]:
            caller = here().process.name
            stream = StreamedCall(self._network, caller, self._server, Sent(path, [message]))
            stream.begin(timeout)
            return _messages(stream)

        return call

    def close(self) -> None:
        """Do nothing: calls end with who calls."""


def _messages(stream: StreamedCall) -> Iterator[bytes]:
    try:
        while (message := wait(stream.next())) is not None:
            yield message
    finally:
        stream.end()


@contextmanager
def readers_simulated(
    network: Network, servers: Callable[[], Mapping[str, SimulatedServer]]
) -> Iterator[VirtualTime]:
    """Have the code of readers run in the simulation.

    Args:
        network: Carries their calls.
        servers: Returns the servers, by address.
    """
    time = VirtualTime(network.world.loop)

    def channel(address: str, *_: object) -> SimulatedChannel:
        return SimulatedChannel(network, servers()[address])

    clocked = cluster_source, lookup_client, lookups, pins, publication, reader, republication
    locked = lookup_client, pins, reader, republication, store_source
    with ExitStack() as stack:
        for module in (*clocked, store_source):
            stack.enter_context(patch.object(module, "time", time))
        for module in locked:
            stack.enter_context(patch.object(module, "threading", Threading))
        for module in (cluster_source, lookups, republication):
            stack.enter_context(patch.object(module, "ThreadPoolExecutor", Pool))
        for module in (cluster_source, lookup_client):
            stack.enter_context(patch.object(module, "LastingChannel", channel))
        yield time
