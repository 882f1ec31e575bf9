"""The service as gRPC sees it."""

from __future__ import annotations

import asyncio
import time
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator
from functools import partial
from typing import NoReturn

import grpc
from google.protobuf.message import DecodeError

from stratagem_proto.errors import (
    InvalidArgumentError,
    MalformedStreamError,
    SessionLostError,
    StratagemError,
)
from stratagem_proto.serving.methods import Handler, handler_of
from stratagem_proto.serving.rpc_boundary import Context, Rpc, RpcBoundary, direct, divert
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.wire.payloads import split
from stratagem_worker.sessions.session import WorkSession
from stratagem_worker.state import WorkerState

_SERVICE = pb.DESCRIPTOR.services_by_name["WorkerService"]

SERVICE = _SERVICE.full_name


def service_handler(state: WorkerState) -> grpc.GenericRpcHandler:
    """Return the worker service over some state."""
    methods = {"Work": partial(_work_handler, state), "Copy": partial(_copy_handler, state)}
    boundary = RpcBoundary(state.handshakes, state.figures)
    return handler_of(boundary, _SERVICE, methods)


def _work_handler(state: WorkerState, rpc: Rpc) -> Handler:
    return grpc.stream_stream_rpc_method_handler(_Work(state, rpc).handle)


def _copy_handler(state: WorkerState, rpc: Rpc) -> Handler:
    return grpc.unary_stream_rpc_method_handler(_Copy(state, rpc).handle)


class _Copy:
    """Calls of `Copy`."""

    def __init__(self, state: WorkerState, rpc: Rpc) -> None:
        self._state, self._rpc = state, rpc

    async def handle(self, data: bytes, context: Context) -> None:
        async with self._rpc.crossing(context) as crossing:
            self._rpc.require_sender(data)
            request = pb.CopyRequest.FromString(data)
            await crossing.admit(request)
            payload = self._state.result(request)
            pieces, last = split(payload)
            for piece in (*pieces, last):
                response = pb.CopyResponse(piece=piece)
                await context.write(response.SerializeToString())


class _Work:
    """Calls of `Work`."""

    def __init__(self, state: WorkerState, rpc: Rpc) -> None:
        self._state, self._rpc = state, rpc
        self._lease = state.settings.lease_seconds

    async def handle(self, messages: AsyncIterator[bytes], context: Context) -> None:
        async with self._rpc.crossing(context) as crossing:
            first = await self._first(messages)
            await crossing.admit(first)
            session = self._state.open(first.open)
            reading = asyncio.create_task(self._read(session, messages))
            sending = asyncio.create_task(self._send(session, context))
            watching = asyncio.create_task(self._watch(session))
            tasks = (reading, sending, watching)
            try:
                await asyncio.wait(tasks, return_when=FIRST_COMPLETED)
                for ended in filter(asyncio.Task.done, (watching, reading)):
                    ended.result()
                await sending
            finally:
                for task in tasks:
                    task.cancel()
                self._state.end(session)
                # The loop may end with the server that this call is the last of.
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _first(self, messages: AsyncIterator[bytes]) -> pb.WorkRequest:
        """Return the handshake with which the call begins.

        Raises:
            MalformedStreamError: By something else.
            SessionLostError: Not for as long as the lease lasts.
            InvalidArgumentError: By more than any handshake has.
        """
        try:
            data = await asyncio.wait_for(anext(messages, b""), self._lease)
        except asyncio.TimeoutError as error:
            raise self._lost() from error
        self._rpc.require_sender(data)
        first = pb.WorkRequest.FromString(data)
        if not first.HasField("open"):
            raise MalformedStreamError("the call does not begin with a handshake")
        return first

    async def _send(self, session: WorkSession, context: Context) -> None:
        """Let the client know what happens until the session ends."""
        opened = pb.WorkResponse(opened=self._state.answer(session))
        await context.write(opened.SerializeToString())
        session.outbox.write_by(direct(context))
        async for message in session.outbox.messages():
            await context.write(message)

    async def _read(self, session: WorkSession, messages: AsyncIterator[bytes]) -> None:
        """Let a session obey its client until that ends the call."""
        error: StratagemError | None = None

        def obey(data: bytes) -> None:
            session.obey(pb.WorkRequest.FromString(data).instructions)

        divert(messages, obey)
        try:
            async for data in messages:
                obey(data)
        except DecodeError:
            error = InvalidArgumentError("the request is no WorkRequest")
        except StratagemError as refusal:
            error = refusal
        except grpc.aio.AbortError:
            return  # the call has ended meanwhile, for another reason
        session.outbox.close(error)

    async def _watch(self, session: WorkSession) -> NoReturn:
        """Look now and then whether the client is there, which costs messages nothing.

        Raises:
            SessionLostError: Nothing is heard of it. It may not read either, so that what waits to
                be sent is no reason to go on.
        """
        while (left := session.heard + self._lease - time.monotonic()) > 0:
            await asyncio.sleep(left)
        raise self._lost()

    def _lost(self) -> SessionLostError:
        return SessionLostError(
            f"nothing was heard of the client for {self._lease:g} s; open another session"
        )
