"""The calls of replicas, by gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from stratagem_proto.errors import UnavailableError
from stratagem_proto.protocol import spoken
from stratagem_proto.v1.replication_pb2 import (
    DESCRIPTOR,
    FollowRequest,
    FollowResponse,
)
from stratagem_proto.v1.session_pb2 import ROLE_SERVER, OpenSessionRequest, Task
from stratagem_proto.v1.status_pb2 import GetStatusRequest, GetStatusResponse
from stratagem_proto.wire.status import from_rpc_error
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.asking import SERVICE as STATUS_SERVICE
from stratagem_rpc.asking import Question
from stratagem_rpc.channel import (
    ASKING_CHANNEL_OPTIONS,
    CHANNEL_OPTIONS,
    Expected,
    Options,
    open_aio_channel,
)
from stratagem_rpc.proving import prove
from stratagem_rpc.server_call import ServerCall

_ASK_SECONDS = 1.0

# A primary that sends no challenge in this time is called again.
_PROVING_SECONDS = 5.0

FOLLOWING = DESCRIPTOR.services_by_name["ReplicationService"].full_name
FOLLOW = "Follow"

Received = TypeVar("Received", bound=Message)


def handshake_of(settings: ServerSettings) -> OpenSessionRequest:
    """Return what proves to other servers that a server belongs to the cluster."""
    return OpenSessionRequest(
        **spoken(),
        role=ROLE_SERVER,
        task=Task(job=settings.job, index=settings.certified_task),
    )


async def ask(
    channel: grpc.aio.Channel, token: str, question: Question[Received], seconds: float
) -> Received:
    """Return what a server answers to one request, and close the channel to it.

    Raises:
        grpc.RpcError: It refuses, does not prove itself, or does not answer in time.
    """
    request = question.request
    async with channel:
        await prove(channel, token, question.method, request.asking, seconds)
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(question.path)
        answer = await call(request.SerializeToString(), timeout=seconds)
        return question.response_type.FromString(answer)


class IncomingCall:
    """The primary's end of a call; `admit` refuses a first message whose caller may not call."""

    def __init__(
        self,
        requests: AsyncIterator[bytes],
        context: ServerCall,
        admit: Callable[[FollowRequest], Awaitable[None]],
    ) -> None:
        self._requests, self._context = aiter(requests), context
        self._admit: Callable[[FollowRequest], Awaitable[None]] | None = admit

    async def send(self, message: FollowResponse) -> None:
        try:
            await self._context.write(message.SerializeToString())
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            raise UnavailableError("the connection of the backup is lost") from error

    async def receive(self) -> FollowRequest:
        try:
            message = FollowRequest.FromString(await anext(self._requests))
        except (StopAsyncIteration, grpc.RpcError, grpc.aio.BaseError) as error:
            raise UnavailableError("the backup has left") from error
        if self._admit is not None:
            await self._admit(message)
            self._admit = None
        return message


class GrpcPeers:
    """Reaches other replicas by gRPC; see `Peers`."""

    def __init__(self, settings: ServerSettings) -> None:
        self._token, self._asking = settings.token, handshake_of(settings)
        # Replicas are the same task; one that can move may be at any server.
        index = None if settings.is_movable else settings.task
        self._expected = Expected(settings.job, index)
        self._certificates = settings.certificates

    def call(self, address: str) -> OutgoingCall:
        return OutgoingCall(address, self._channel(address, CHANNEL_OPTIONS), self._token)

    def _channel(self, address: str, options: Options) -> grpc.aio.Channel:
        return open_aio_channel(address, options, self._expected, self._certificates)

    async def instance_at(self, address: str) -> bytes:
        request, path = GetStatusRequest(asking=self._asking), f"/{STATUS_SERVICE}/GetStatus"
        question = Question(path, request, GetStatusResponse)
        try:
            channel = self._channel(address, ASKING_CHANNEL_OPTIONS)
            status = await ask(channel, self._token, question, _ASK_SECONDS)
        except grpc.RpcError:
            return b""
        return status.parameter_server.replication.replica.instance


class OutgoingCall:
    """The backup's end of a call."""

    def __init__(self, address: str, channel: grpc.aio.Channel, token: str) -> None:
        self._peer, self._token = f"the primary at {address}", token
        self._channel = channel
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        method = self._channel.stream_stream(f"/{FOLLOWING}/{FOLLOW}")
        self._call = method()

    async def send(self, message: FollowRequest) -> None:
        """Send a message; an introduction is sent with a proof."""
        try:
            if message.HasField("introduction"):
                asking = message.introduction.asking
                await prove(self._channel, self._token, FOLLOW, asking, _PROVING_SECONDS)
            await self._call.write(message.SerializeToString())
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._peer, FOLLOW) from error
        except grpc.aio.UsageError as error:
            raise UnavailableError(f"{self._peer} has ended the call") from error

    async def receive(self) -> FollowResponse:
        try:
            data = await self._call.read()
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._peer, FOLLOW) from error
        if not isinstance(data, bytes):
            raise UnavailableError(f"{self._peer} has ended the call")
        return FollowResponse.FromString(data)

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()
