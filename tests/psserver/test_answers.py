"""Answers of several frames that do not leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import pytest

from stratagem_proto.errors import UnavailableError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.parameter_server_service_pb2 import DESCRIPTOR as SERVICE_FILE
from stratagem_psserver.log.changes import Changes
from stratagem_psserver.service import Methods
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.serving.figures import Figures
from stratagem_rpc.serving.handshake import Handshakes
from stratagem_rpc.serving.rpc_boundary import RpcBoundary
from tests.simulation.server_run import ServedCall

READ = SERVICE_FILE.services_by_name["ParameterServerService"].methods_by_name["Read"]


class FailingDisk(Changes):
    """Changes that do not come to a disk."""

    async def durable(self) -> None:
        raise UnavailableError("the disk fails")


def test_an_answer_that_no_disk_lets_leave_holds_nothing() -> None:
    held = ["the locks of its values"]

    async def read(*_: object) -> AsyncGenerator[bytes, None]:
        try:
            yield b"values"
        finally:
            held.clear()

    boundary = RpcBoundary(Handshakes(ServerSettings()), Figures())
    handler: Any = Methods(FailingDisk()).download(pb.ReadRequest, read)(boundary.rpc(READ))

    async def is_held_after_failure() -> bool:
        with pytest.raises(grpc.RpcError) as caught:
            _ = [frame async for frame in handler.unary_stream(b"", ServedCall(None))]
        # The error keeps alive what its frames refer to.
        assert caught.value.__traceback__ is not None
        return bool(held)

    assert not asyncio.run(is_held_after_failure())
