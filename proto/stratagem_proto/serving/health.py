"""Health checks and reflection, on a server and port of their own.

A data plane that is busy, or whose port asks for certificates, still answers its
probes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from stratagem_proto.server_log import LOG
from stratagem_proto.serving.addresses import bound
from stratagem_proto.serving.loop import LoopThread
from stratagem_proto.serving.pulse import Pulse
from stratagem_proto.serving.reflection import MOST_STREAMS, add_reflection
from stratagem_proto.wire.channel import SERVER_OPTIONS

_STATUS = health_pb2.HealthCheckResponse


class HealthServer:
    """Answers for the data plane; serving from the start."""

    def __init__(self, bind: str, service: str) -> None:
        """Binds its port.

        Args:
            bind: "host:port" to answer on.
            service: Full name of the service of the data plane.
        """
        # Two are left to probes.
        threads = MOST_STREAMS + 2
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="health")
        self._health = health.HealthServicer()
        self._pulse: Pulse | None = None
        self._server = grpc.server(self._threads, options=SERVER_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._services = ("", service)
        add_reflection((service, health.SERVICE_NAME), self._server)
        self.address = bound(self._server, bind)

    def start(self, loop: LoopThread) -> None:
        """Answers from now on.

        Args:
            loop: Where the data plane runs, which serves for as long as it turns.
        """
        self._tell(True)
        self._server.start()
        self._pulse = Pulse(loop, self._turns)
        self._pulse.start()

    def _turns(self, does: bool) -> None:
        if does:
            LOG.warning("the event loop turns again")
        else:
            LOG.error("the event loop is stuck; probes hear that nothing is served")
        self._tell(does)

    def _tell(self, serves: bool) -> None:
        status = _STATUS.SERVING if serves else _STATUS.NOT_SERVING
        for service in self._services:
            self._health.set(service, status)

    def announce_drain(self) -> None:
        """Tells probes that the data plane takes no more calls; its loop may end."""
        if self._pulse is not None:
            self._pulse.stop()
        self._health.enter_graceful_shutdown()

    def stop(self) -> None:
        self._server.stop(None).wait()
        self._threads.shutdown()
