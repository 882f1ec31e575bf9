"""What a server has carried out for this process, and so is not what ends it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from stratagem._ps_client.requests.request import Request
from stratagem_proto.v1.parameter_server_pb2 import UpdateHeader


class Experience:
    """Which kinds of changes a server has survived, and how large ones. Thread-safe.

    What ends a server is most often new to it: a program that it has not run, or a request that is
    larger than those before. A step that it has taken a thousand times is not.
    """

    def __init__(self) -> None:
        self._most: dict[Hashable, int] = {}

    def note(self, request: Request[Any]) -> None:
        """Note that a server has carried out a request."""
        kind, nbytes = _kind(request), _nbytes(request)
        if nbytes > self._most.get(kind, -1):
            self._most[kind] = nbytes

    def covers(self, request: Request[Any]) -> bool:
        """Return whether a server has carried out a request of the kind that was as large."""
        return _nbytes(request) <= self._most.get(_kind(request), -1)


def _kind(request: Request[Any]) -> Hashable:
    message = request.message
    if isinstance(message, UpdateHeader) and message.program.HasField("graph"):
        return request.method, message.program.graph.SerializeToString(deterministic=True)
    return request.method, b""


def _nbytes(request: Request[Any]) -> int:
    return request.request_nbytes + request.derived_nbytes + request.response_nbytes
