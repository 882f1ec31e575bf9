"""The calls of replicas, by gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

import grpc
from google.protobuf.message import Message

from stratagem_proto.errors import UnavailableError
from stratagem_proto.protocol import PROTOCOL_VERSION
from stratagem_proto.v1 import arbitration_pb2
from stratagem_proto.v1.replication_pb2 import DESCRIPTOR, FollowRequest, FollowResponse
from stratagem_proto.v1.session_pb2 import ROLE_SERVER, OpenSessionRequest, Task
from stratagem_proto.v1.status_pb2 import GetStatusRequest, GetStatusResponse
from stratagem_proto.wire.channel import CHANNEL_OPTIONS
from stratagem_proto.wire.server_status import SERVICE as STATUS_SERVICE
from stratagem_proto.wire.status import from_rpc_error
from stratagem_psserver.settings import ServerSettings

_ASK_SECONDS = 1.0

FOLLOWING = DESCRIPTOR.services_by_name["ReplicationService"].full_name
FOLLOW = "Follow"

ARBITRATION = arbitration_pb2.DESCRIPTOR.services_by_name["ArbitrationService"].full_name
ARBITRATE = "Arbitrate"


Sent = TypeVar("Sent", bound=Message)
Received = TypeVar("Received", bound=Message)


def handshake_of(settings: ServerSettings) -> OpenSessionRequest:
    """Return what proves to other servers that a server belongs to the cluster."""
    return OpenSessionRequest(
        protocol_version=PROTOCOL_VERSION,
        cluster_token=settings.token,
        role=ROLE_SERVER,
        task=Task(job=settings.job, index=settings.task),
    )


async def asked(
    address: str, path: str, request: Message, response_type: type[Received], seconds: float
) -> Received:
    """Return what a server answers to one request, on a connection of its own.

    Raises:
        grpc.RpcError: It refuses, or does not answer in so many seconds.
    """
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
        return response_type.FromString(await call(request.SerializeToString(), timeout=seconds))


class IncomingCall(Generic[Sent, Received]):
    """The end of whoever was called.

    Args:
        requests: The messages of the caller.
        context: The call.
        received: What they are.
        caller: Who has called, for messages.
        admit: Called with the first message; raises if the caller may not call.
    """

    def __init__(
        self,
        requests: AsyncIterator[bytes],
        context: grpc.aio.ServicerContext[bytes, bytes],
        received: type[Received],
        caller: str,
        admit: Callable[[Received], None],
    ) -> None:
        self._requests, self._context = aiter(requests), context
        self._received, self._caller = received, caller
        self._admit: Callable[[Received], None] | None = admit

    async def send(self, message: Sent) -> None:
        """Send a message; raise as `Channel.send`."""
        try:
            await self._context.write(message.SerializeToString())
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            raise UnavailableError(f"the connection of {self._caller} is lost") from error

    async def receive(self) -> Received:
        """Return the next message; raise as `Channel.receive`."""
        try:
            message = self._received.FromString(await anext(self._requests))
        except (StopAsyncIteration, grpc.RpcError, grpc.aio.BaseError) as error:
            raise UnavailableError(f"{self._caller} has left") from error
        if self._admit is not None:
            self._admit(message)
            self._admit = None
        return message


class GrpcPeers:
    """Reaches other replicas by gRPC.

    Args:
        settings: Those of the replica that calls.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._asking = handshake_of(settings)

    def call(self, address: str) -> OutgoingCall:
        """Call the primary at an address."""
        return OutgoingCall(address)

    async def instance_at(self, address: str) -> bytes:
        """Return the instance of the replica at an address; empty if none answers."""
        request, path = GetStatusRequest(asking=self._asking), f"/{STATUS_SERVICE}/GetStatus"
        try:
            status = await asked(address, path, request, GetStatusResponse, _ASK_SECONDS)
        except grpc.RpcError:
            return b""
        return status.parameter_server.replication.replica.instance


class OutgoingCall:
    """The backup's end of a call.

    Args:
        address: The "host:port" of the primary.
    """

    def __init__(self, address: str) -> None:
        self._peer = f"the primary at {address}"
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        method = self._channel.stream_stream(f"/{FOLLOWING}/{FOLLOW}")
        self._call = method()

    async def send(self, message: FollowRequest) -> None:
        """Send a message; raise as `Channel.send`."""
        try:
            await self._call.write(message.SerializeToString())
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._peer, FOLLOW) from error
        except grpc.aio.UsageError as error:
            raise UnavailableError(f"{self._peer} has ended the call") from error

    async def receive(self) -> FollowResponse:
        """Return the next message; raise as `Channel.receive`."""
        try:
            data = await self._call.read()
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._peer, FOLLOW) from error
        if not isinstance(data, bytes):
            raise UnavailableError(f"{self._peer} has ended the call")
        return FollowResponse.FromString(data)

    async def close(self) -> None:
        """End the call; a repetition does nothing."""
        self._call.cancel()
        await self._channel.close()
