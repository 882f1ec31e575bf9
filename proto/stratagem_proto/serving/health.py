"""Health checks and reflection, on a server and port of their own.

A data plane that is busy, or whose port asks for certificates, still answers its
probes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from stratagem_proto.serving.addresses import bound
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
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="health")
        self._health = health.HealthServicer()
        self._server = grpc.server(self._threads, options=SERVER_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._services = ("", service)
        names = (service, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self.address = bound(self._server, bind)

    def start(self) -> None:
        for service in self._services:
            self._health.set(service, _STATUS.SERVING)
        self._server.start()

    def announce_drain(self) -> None:
        """Tells probes that the data plane takes no more calls."""
        self._health.enter_graceful_shutdown()

    def stop(self) -> None:
        self._server.stop(None).wait()
        self._threads.shutdown()
