"""Health checks and reflection, on a server and a port of their own.

So probes are answered even if the data plane is busy or its port asks for certificates.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from stratagem_rpc.channel import SERVER_OPTIONS
from stratagem_rpc.server_log import LOG
from stratagem_rpc.serving.process import LoopThread
from stratagem_rpc.serving.settings import bound

# A stream of reflection occupies a thread until its client ends it or this time is over.
MOST_STREAMS = 2
_STREAM_SECONDS = 30.0


# A probe takes a moment. Those who stay make place for others.
_OPTIONS = [
    *SERVER_OPTIONS,
    ("grpc.max_allowed_incoming_connections", 64),
    ("grpc.max_connection_idle_ms", 10_000),
    ("grpc.max_connection_age_ms", 120_000),
    ("grpc.max_connection_age_grace_ms", 5_000),
]


class Reflection(reflection.ReflectionServicer):
    """Reflection that does not occupy all threads.

    Args:
        services: The full names of the services.
    """

    def __init__(self, services: tuple[str, ...]) -> None:
        super().__init__(services)
        self._free = threading.Semaphore(MOST_STREAMS)

    def ServerReflectionInfo(
        self, request_iterator: Iterable[Any], context: Any
    ) -> Iterator[reflection_pb2.ServerReflectionResponse]:
        if not self._free.acquire(blocking=False):
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MOST_STREAMS} clients have streams of reflection open; close one of them",
            )
        ending = threading.Timer(_STREAM_SECONDS, context.cancel)
        ending.daemon = True
        ending.start()
        try:
            yield from super().ServerReflectionInfo(request_iterator, context)
        finally:
            ending.cancel()
            self._free.release()


def add_reflection(services: tuple[str, ...], server: grpc.Server) -> None:
    """Add reflection of services, given by their full names, to a server."""
    add: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
    add(Reflection((*services, reflection.SERVICE_NAME)), server)


_STATUS = health_pb2.HealthCheckResponse


class HealthServer:
    """The server that answers health checks of the data plane."""

    def __init__(self, bind: str, service: str) -> None:
        """Bind its port.

        Args:
            bind: The "host:port" to listen on.
            service: The full name of the service of the data plane.
        """
        # Two threads remain for probes.
        threads = MOST_STREAMS + 2
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="health")
        self._health = health.HealthServicer()
        self._pulse: Pulse | None = None
        self._server = grpc.server(self._threads, options=_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        # Whether each service is there as long as the event loop responds.
        self._services = {"": True, service: True}
        self._responds, self._changing = True, threading.Lock()
        add_reflection((service, health.SERVICE_NAME), self._server)
        self.address = bound(self._server, bind)

    def start(self, loop: LoopThread, lease_seconds: float) -> None:
        """Answer from now on.

        Args:
            loop: The event loop of the data plane.
            lease_seconds: A loop that does not turn for so long serves nobody: no client could have
                renewed its lease meanwhile.
        """
        self._loop_serves(True)
        self._server.start()
        self._pulse = Pulse(loop, lease_seconds, self._loop_changed)
        self._pulse.start()

    def _loop_changed(self, responds: bool) -> None:
        if responds:
            LOG.warning("the event loop responds again")
        else:
            LOG.error("the event loop is stuck; probes are answered NOT_SERVING")
        self._loop_serves(responds)

    def _loop_serves(self, responds: bool) -> None:
        with self._changing:
            self._responds = responds
            for service in self._services:
                self._announce(service)

    def set_serving(self, service: str, serves: bool) -> None:
        """Answer checks of a further service from now on; a repetition does nothing.

        Args:
            service: Its full name.
            serves: Whether it serves as long as the event loop responds.
        """
        with self._changing:
            if self._services.get(service) is not serves:
                self._services[service] = serves
                self._announce(service)

    def _announce(self, service: str) -> None:
        serves = self._responds and self._services[service]
        self._health.set(service, _STATUS.SERVING if serves else _STATUS.NOT_SERVING)

    def announce_drain(self) -> None:
        """Answer probes that the data plane takes no more calls; its loop may end afterwards."""
        if self._pulse is not None:
            self._pulse.stop()
        self._health.enter_graceful_shutdown()

    def stop(self) -> None:
        self._server.stop(None).wait()
        self._threads.shutdown()


# The loop is stuck after so many beats without an answer. A clock would count the time, too, for
# which the whole process was suspended, which is not stuck. Long work runs in threads, not on the
# loop.
_MISSED_BEATS = 10


class Pulse:
    """A thread that checks several times in a lease whether the event loop responds.

    Args:
        loop: The loop.
        lease_seconds: The loop is stuck if it does not respond for so long.
        changed: Called with whether the loop responds, each time that this has changed.
    """

    def __init__(
        self, loop: LoopThread, lease_seconds: float, changed: Callable[[bool], None]
    ) -> None:
        self._loop, self._changed = loop, changed
        self._beat_seconds = lease_seconds / _MISSED_BEATS
        self._answered, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop checking; the loop must exist until this returns."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        missed = 0
        self._loop.call(self._answered.set)
        while not self._ended.wait(self._beat_seconds):
            if not self._answered.is_set():
                missed += 1
                if missed == _MISSED_BEATS:
                    self._changed(False)
                continue
            if missed >= _MISSED_BEATS:
                self._changed(True)
            missed = 0
            self._answered.clear()
            self._loop.call(self._answered.set)
