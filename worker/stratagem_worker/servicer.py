"""The service as gRPC sees it."""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator

import grpc
from google.protobuf.message import DecodeError

from stratagem_proto.errors import (
    InvalidArgumentError,
    MalformedStreamError,
    SessionLostError,
    StratagemError,
)
from stratagem_proto.payloads import split
from stratagem_proto.serving.border import Border, Context
from stratagem_proto.serving.methods import Handler
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_worker.session import WorkSession
from stratagem_worker.state import WorkerState

SERVICE = pb.DESCRIPTOR.services_by_name["WorkerService"].full_name


def service_handler(state: WorkerState) -> grpc.GenericRpcHandler:
    """The worker service over some state."""
    work: Handler = grpc.stream_stream_rpc_method_handler(_Work(state).handle)
    copy: Handler = grpc.unary_stream_rpc_method_handler(_Copy(state).handle)
    return grpc.method_handlers_generic_handler(SERVICE, {"Work": work, "Copy": copy})


class _Copy:
    """Calls of `Copy`."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._border = Border(state.settings.label, state.figures)

    async def handle(self, request: bytes, context: Context) -> None:
        async with self._border.crossing(context, pb.CopyRequest.__name__):
            payload = self._state.result(pb.CopyRequest.FromString(request))
            pieces, last = split(payload)
            for piece in (*pieces, last):
                response = pb.CopyResponse(piece=piece)
                await context.write(response.SerializeToString())


class _Work:
    """Calls of `Work`."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._border = Border(state.settings.label, state.figures)
        self._lease = state.settings.lease_seconds

    async def handle(self, messages: AsyncIterator[bytes], context: Context) -> None:
        async with self._border.crossing(context, pb.WorkRequest.__name__):
            first = await self._request(messages)
            if first is None or not first.HasField("open"):
                raise MalformedStreamError("the call does not begin with a handshake")
            session = self._state.open(first.open)
            reading = asyncio.create_task(self._read(session, messages))
            sending = asyncio.create_task(self._send(session, context))
            try:
                await asyncio.wait((reading, sending), return_when=FIRST_COMPLETED)
                if reading.done():
                    reading.result()
                await sending
            finally:
                reading.cancel()
                sending.cancel()
                self._state.end(session)
                # The loop may end with the server that this call is the last of.
                await asyncio.gather(reading, sending, return_exceptions=True)

    async def _send(self, session: WorkSession, context: Context) -> None:
        """Lets the client know what happens until the session ends."""
        opened = pb.WorkResponse(opened=self._state.answer())
        await context.write(opened.SerializeToString())
        async for batch in session.outbox.batches():
            response = pb.WorkResponse(events=batch)
            await context.write(response.SerializeToString())

    async def _read(self, session: WorkSession, messages: AsyncIterator[bytes]) -> None:
        """Lets a session obey its client until that ends the call.

        Raises:
            SessionLostError: Nothing is heard of the client. It may not read either, so
                that what waits to be sent is no reason to go on.
        """
        error: StratagemError | None = None
        try:
            while (request := await self._request(messages)) is not None:
                session.obey(request.instructions)
        except DecodeError:
            error = InvalidArgumentError("the request is no WorkRequest")
        except SessionLostError:
            raise
        except StratagemError as refusal:
            error = refusal
        except grpc.aio.AbortError:
            return  # the call has ended meanwhile, for another reason
        session.outbox.close(error)

    async def _request(self, messages: AsyncIterator[bytes]) -> pb.WorkRequest | None:
        """The next request; None at the end.

        Raises:
            SessionLostError: None came for as long as the lease lasts.
        """
        try:
            data = await asyncio.wait_for(anext(messages, None), self._lease)
        except asyncio.TimeoutError as error:
            raise SessionLostError(
                f"nothing was heard of the client for {self._lease:g} s; open another "
                "session"
            ) from error
        return None if data is None else pb.WorkRequest.FromString(data)
