"""The service that answers with the status of a server."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import grpc

from stratagem_proto.protocol import PROTOCOL_VERSION, release
from stratagem_proto.v1 import status_pb2 as pb
from stratagem_proto.v1.session_pb2 import Task
from stratagem_rpc.serving.figures import Figures
from stratagem_rpc.serving.handshake import Handshakes
from stratagem_rpc.serving.rpc_boundary import RpcBoundary, handler_of, unary_method

_SERVICE = pb.DESCRIPTOR.services_by_name["StatusService"]


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "stratagem": release()}
    with suppress(PackageNotFoundError):
        found["torch"] = version("torch")
    return {package: known for package, known in found.items() if known}


Fill = Callable[[pb.GetStatusResponse, bool], Awaitable[None]]
"""Fills in the part of a status for one kind of server; the flag says whether to list variables."""


class StatusService:
    """The status service of one server; runs on its event loop."""

    def __init__(
        self, handshakes: Handshakes, incarnation: bytes, figures: Figures, fill: Fill
    ) -> None:
        """Describe the server.

        Args:
            handshakes: Those of the server, which know its settings.
            incarnation: Identifies the run of the server.
            figures: The figures of its calls.
            fill: Fills in the part for its kind of server.
        """
        self._settings = handshakes.settings
        self._incarnation = incarnation
        self._figures = figures
        self._fill = fill
        self._boundary = RpcBoundary(handshakes, figures)
        self._began = time.monotonic()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler of the service."""
        methods = {"GetStatus": unary_method(pb.GetStatusRequest, self._answer)}
        return handler_of(self._boundary, _SERVICE, methods)

    async def _answer(self, request: pb.GetStatusRequest) -> pb.GetStatusResponse:
        return await self.status(request.with_variables)

    async def status(self, with_variables: bool = False) -> pb.GetStatusResponse:
        """Return the status of the server."""
        settings = self._settings
        status = pb.GetStatusResponse(
            task=Task(job=settings.job, index=settings.task),
            incarnation=self._incarnation,
            protocol_version=PROTOCOL_VERSION,
            pid=os.getpid(),
            uptime_seconds=time.monotonic() - self._began,
            unix_seconds=time.time(),
            versions=_versions(),
            insecure=settings.is_exposed,
            methods=self._figures.methods(),
        )
        await self._fill(status, with_variables)
        return status
