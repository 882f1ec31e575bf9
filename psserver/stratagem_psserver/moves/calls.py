"""The calls by which a server asks others about their tasks, and gives them its own."""

from __future__ import annotations

from typing import TypeVar

import grpc
from google.protobuf.message import Message

from stratagem_proto.v1 import servers_pb2 as pb
from stratagem_proto.v1.replication_pb2 import View
from stratagem_proto.wire.status import from_rpc_error
from stratagem_psserver.replication.calls import asked, handshake_of
from stratagem_psserver.settings import ServerSettings

SERVICE = pb.DESCRIPTOR.services_by_name["ServersService"].full_name

_ASK_SECONDS = 2.0

_Response = TypeVar("_Response", bound=Message)


class OtherServers:
    """Calls servers by their addresses.

    Args:
        settings: Those of the server that calls.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._asking = handshake_of(settings)

    async def describe(self, address: str) -> pb.DescribeServerResponse:
        """Return what a server says of itself.

        Raises:
            StratagemError: It does not answer.
        """
        request = pb.DescribeServerRequest(asking=self._asking)
        response_type = pb.DescribeServerResponse
        return await _call(address, "DescribeServer", request, response_type, _ASK_SECONDS)

    async def take(self, address: str, task: int, seconds: float) -> View:
        """Have a server take a task, and return the view in which it serves it.

        Raises:
            StratagemError: It refuses, or does not get the task in so many seconds.
        """
        request = pb.TakeTaskRequest(asking=self._asking, task=task, seconds=seconds)
        deadline = seconds + _ASK_SECONDS
        return (await _call(address, "TakeTask", request, pb.TakeTaskResponse, deadline)).view


async def _call(
    address: str, method: str, request: Message, response_type: type[_Response], seconds: float
) -> _Response:
    try:
        return await asked(address, f"/{SERVICE}/{method}", request, response_type, seconds)
    except grpc.RpcError as error:
        raise from_rpc_error(error, f"the server at {address}", method) from error
