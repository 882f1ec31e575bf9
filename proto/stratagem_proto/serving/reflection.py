"""What a server tells of its services, in a few streams at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

# Each holds a thread for as long as its client likes, up to that time.
MOST_STREAMS = 2
_STREAM_SECONDS = 30.0


class Reflection(reflection.ReflectionServicer):
    """Reflection that leaves threads to others.

    Args:
        services: Full names of the services.
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
                f"{MOST_STREAMS} clients look at the services; close their streams",
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
    """Has a server tell of services, by their full names."""
    add: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
    add(Reflection((*services, reflection.SERVICE_NAME)), server)
