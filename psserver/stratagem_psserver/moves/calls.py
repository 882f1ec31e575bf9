"""The calls by which a server asks others about their tasks, and gives them its own."""

from __future__ import annotations

from typing import TypeVar

import grpc
from google.protobuf.message import Message

from stratagem_proto.v1 import servers_pb2 as pb
from stratagem_proto.v1.replication_pb2 import View
from stratagem_proto.wire.asking import Question
from stratagem_proto.wire.channel import ASKING_CHANNEL_OPTIONS, Expected, open_aio_channel
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
        self._token, self._asking = settings.token, handshake_of(settings)
        self._expected, self._certificates = Expected(settings.job), settings.certificates

    async def describe(self, address: str) -> pb.DescribeServerResponse:
        """Return what a server says of itself.

        Raises:
            StratagemError: It does not answer.
        """
        request = pb.DescribeServerRequest(asking=self._asking)
        question = _question("DescribeServer", request, pb.DescribeServerResponse)
        return await self._call(address, question, _ASK_SECONDS)

    async def take(self, address: str, task: int, seconds: float) -> View:
        """Have a server take a task, and return the view in which it serves it.

        Raises:
            StratagemError: It refuses, or does not get the task in so many seconds.
        """
        request = pb.TakeTaskRequest(asking=self._asking, task=task, seconds=seconds)
        question = _question("TakeTask", request, pb.TakeTaskResponse)
        return (await self._call(address, question, seconds + _ASK_SECONDS)).view

    async def _call(self, address: str, question: Question[_Response], seconds: float) -> _Response:
        channel = open_aio_channel(
            address, ASKING_CHANNEL_OPTIONS, self._expected, self._certificates
        )
        try:
            return await asked(channel, self._token, question, seconds)
        except grpc.RpcError as error:
            raise from_rpc_error(error, f"the server at {address}", question.method) from error


def _question(method: str, request: Message, response_type: type[_Response]) -> Question[_Response]:
    return Question(f"/{SERVICE}/{method}", request, response_type)
