"""The calls by which backups follow primaries, by gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from stratagem_proto.errors import UnavailableError
from stratagem_proto.v1.replication_pb2 import DESCRIPTOR, FollowRequest, FollowResponse
from stratagem_proto.wire.channel import CHANNEL_OPTIONS
from stratagem_proto.wire.status import from_rpc_error

SERVICE = DESCRIPTOR.services_by_name["ReplicationService"].full_name
METHOD = "Follow"


class IncomingCall:
    """The primary's end of a call.

    Args:
        requests: The messages of the backup.
        context: The call.
    """

    def __init__(
        self,
        requests: AsyncIterator[bytes],
        context: grpc.aio.ServicerContext[bytes, bytes],
    ) -> None:
        self._requests, self._context = aiter(requests), context

    async def send(self, message: FollowResponse) -> None:
        """Send a message; raise as `Channel.send`."""
        try:
            await self._context.write(message.SerializeToString())
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            raise UnavailableError("the connection of the backup is lost") from error

    async def receive(self) -> FollowRequest:
        """Return the next message; raise as `Channel.receive`."""
        try:
            return FollowRequest.FromString(await anext(self._requests))
        except (StopAsyncIteration, grpc.RpcError, grpc.aio.BaseError) as error:
            raise UnavailableError("the backup has left") from error


class OutgoingCall:
    """The backup's end of a call.

    Args:
        address: The "host:port" of the primary.
    """

    def __init__(self, address: str) -> None:
        self._peer = f"the primary at {address}"
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        method = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")
        self._call = method()

    async def send(self, message: FollowRequest) -> None:
        """Send a message; raise as `Channel.send`."""
        try:
            await self._call.write(message.SerializeToString())
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._peer, METHOD) from error
        except grpc.aio.UsageError as error:
            raise UnavailableError(f"{self._peer} has ended the call") from error

    async def receive(self) -> FollowResponse:
        """Return the next message; raise as `Channel.receive`."""
        try:
            data = await self._call.read()
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._peer, METHOD) from error
        if not isinstance(data, bytes):
            raise UnavailableError(f"{self._peer} has ended the call")
        return FollowResponse.FromString(data)

    async def close(self) -> None:
        """End the call; a repetition does nothing."""
        self._call.cancel()
        await self._channel.close()
