"""Calls by which servers are asked for their tasks, and given others."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from stratagem._ps_client.connections.session import Identity, handshake
from stratagem._ps_client.moving.effort import Effort
from stratagem_proto.errors import StratagemError
from stratagem_proto.v1 import servers_pb2 as pb
from stratagem_proto.v1.replication_pb2 import View
from stratagem_proto.wire.asking import Answer, Question
from stratagem_proto.wire.channel import ANY_PARAMETER_SERVER, open_channel
from stratagem_proto.wire.status import from_rpc_error

_SERVICE = pb.DESCRIPTOR.services_by_name["ServersService"].full_name

_ASK_SECONDS = 5.0

# A server that takes a task answers by itself when the time is over.
_MARGIN_SECONDS = 30.0

_Response = TypeVar("_Response", bound=Message)


class ServerCalls:
    """Calls servers by their addresses.

    Args:
        identity: Who calls.
    """

    def __init__(self, identity: Identity) -> None:
        self._token, self._asking = identity.token, handshake(identity, identifier=b"")

    def describe(
        self, addresses: Iterable[str]
    ) -> dict[str, pb.DescribeServerResponse | StratagemError]:
        """Return what each server says of itself, or why it does not."""
        request = pb.DescribeServerRequest(asking=self._asking)
        return self._ask(addresses, "DescribeServer", request, pb.DescribeServerResponse)

    def locate(self, addresses: Iterable[str]) -> dict[str, dict[int, View] | StratagemError]:
        """Return where each server says that tasks are, or why it does not."""
        request = pb.LocateTasksRequest(asking=self._asking)
        found = self._ask(addresses, "LocateTasks", request, pb.LocateTasksResponse)
        return {
            address: answer
            if isinstance(answer, StratagemError)
            else {each.task: each.view for each in answer.tasks}
            for address, answer in found.items()
        }

    def take(self, address: str, task: int, effort: Effort) -> View:
        """Have a server take a task; raise what it answers."""
        request = pb.TakeTaskRequest(
            asking=self._asking,
            task=task,
            seconds=effort.timeout,
            bytes_per_second=effort.bytes_per_second,
        )
        deadline = effort.timeout + _MARGIN_SECONDS
        return self._call(address, "TakeTask", request, pb.TakeTaskResponse, deadline).view

    def set_draining(self, address: str, draining: bool) -> None:
        """Say whether a server may be given tasks; raise what it answers."""
        request = pb.SetDrainingRequest(asking=self._asking, draining=draining)
        self._call(address, "SetDraining", request, pb.SetDrainingResponse)

    def _call(
        self,
        address: str,
        method: str,
        request: Message,
        response_type: type[_Response],
        seconds: float = _ASK_SECONDS,
    ) -> _Response:
        found = self._ask([address], method, request, response_type, seconds)[address]
        if isinstance(found, StratagemError):
            raise found
        return found

    def _ask(
        self,
        addresses: Iterable[str],
        method: str,
        request: Message,
        response_type: type[_Response],
        seconds: float = _ASK_SECONDS,
    ) -> dict[str, _Response | StratagemError]:
        question = Question(f"/{_SERVICE}/{method}", request, response_type)
        with ExitStack() as channels:
            answers = {}
            for address in addresses:
                opened = open_channel(address, expected=ANY_PARAMETER_SERVER)
                channel = channels.enter_context(opened)
                answers[address] = Answer(channel, question, self._token, seconds)
            return {
                address: _outcome(answer, f"the server at {address}", method)
                for address, answer in answers.items()
            }


def _outcome(answer: Answer[_Response], peer: str, method: str) -> _Response | StratagemError:
    try:
        return answer.result()
    except grpc.RpcError as error:
        return from_rpc_error(error, peer, method)
