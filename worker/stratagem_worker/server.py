"""A worker server: all that its process holds, and its service."""

from __future__ import annotations

import asyncio
import os
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

import grpc
from google.protobuf.message import DecodeError

from stratagem._for_workers import (
    KINDS,
    Loader,
    WorkerTask,
    form_for,
    list_logical_devices,
    this_runtime,
)
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    MalformedStreamError,
    NotFoundError,
    SessionLostError,
    StratagemError,
    UnavailableError,
)
from stratagem_proto.protocol import SESSION_ID_BYTES, digest_of, spoken
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.session_pb2 import OpenSessionResponse, Task
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_proto.v1.worker_pb2 import Runtime
from stratagem_proto.wire.payloads import split
from stratagem_rpc.channel import PATIENT_SERVER_OPTIONS
from stratagem_rpc.server_call import CallMessages, ServerCall
from stratagem_rpc.serving.callers import certificate_of_caller
from stratagem_rpc.serving.figures import Figures
from stratagem_rpc.serving.handshake import Handshakes, challenge_handler
from stratagem_rpc.serving.rpc_boundary import (
    Handler,
    Rpc,
    RpcBoundary,
    handler_of,
)
from stratagem_rpc.serving.server import RpcServer
from stratagem_rpc.serving.status import StatusService
from stratagem_rpc.serving.task_servers import TaskServer, TaskSettings
from stratagem_rpc.socket_server.listener import OfferedSockets
from stratagem_worker.functions import Executor, Interruptible
from stratagem_worker.results import ResultMemory, StayingResults
from stratagem_worker.session import Running, WorkSession
from stratagem_worker.settings import WorkerSettings

_DRAIN_POLL_SECONDS = 0.02


def check_runtime(client: Runtime, worker: str) -> None:
    """Refuse a client whose pickles may mean something else here, and name both versions."""
    here = this_runtime()
    for field in Runtime.DESCRIPTOR.fields:
        theirs, ours = getattr(client, field.name), getattr(here, field.name)
        if theirs != ours:
            raise FailedPreconditionError(
                f"the client runs {field.name} {theirs or 'of no version'} and "
                f"{worker} {ours}, so that they would misread each other's functions; "
                f"install the same {field.name} on both",
                task=worker,
            )


class WorkerState:
    """The sessions of a worker and the thread that they share; on the event loop."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings, self.handshakes = settings, Handshakes(settings)
        self.figures = Figures()
        self.incarnation = os.urandom(SESSION_ID_BYTES)
        self._gpus = len(list_logical_devices("GPU"))
        self._executor = Executor(settings.label)
        self._interruptible = Interruptible[Running]()
        self._memory = ResultMemory(settings.result_bytes)
        self._sessions: dict[bytes, WorkSession] = {}
        self._draining = False
        self.frame_sockets: OfferedSockets | None = None

    def begin(self) -> None:
        self._executor.start()

    def open(self, request: pb.OpenWorkerSession) -> WorkSession:
        """Begin a session; raise `StratagemError` if the client may not have one."""
        check_runtime(request.runtime, self.settings.label)
        if self._draining:
            raise self._shutting_down()
        settings, identifier = self.settings, request.session.session_id
        task = WorkerTask(settings.task, settings.token, request.address)
        loader = Loader(task, KINDS, form_for(request.trusts_worker), settings.code())
        session = WorkSession(
            settings,
            self._executor,
            self._interruptible,
            StayingResults(identifier, self._memory),
            loader,
            request.session,
        )
        self._sessions[identifier] = session
        return session

    def answer(self, session: WorkSession) -> pb.WorkerSessionOpened:
        """Return what the client of a new session is told."""
        sockets, shown = self.frame_sockets, certificate_of_caller(self.settings)
        return pb.WorkerSessionOpened(
            session=OpenSessionResponse(
                **spoken(),
                incarnation=self.incarnation,
                task=Task(job=self.settings.job, index=self.settings.task),
                lease_seconds=self.settings.lease_seconds,
                frame_sockets=sockets.to(session.results.session_id, shown) if sockets else None,
            ),
            gpus=self._gpus,
        )

    def client_of(self, session_id: bytes) -> str | None:
        """Return which coordinator has opened a session; None if it is not open."""
        return digest_of(session_id) if session_id in self._sessions else None

    def end(self, session: WorkSession) -> None:
        """End a session; its client may have opened it again meanwhile, by another way."""
        identifier = session.results.session_id
        if self._sessions.get(identifier) is session:
            del self._sessions[identifier]
        session.end()

    def result(self, request: pb.CopyRequest) -> bytes:
        """Return a result that a session has left here, if the asking worker may have it."""
        session = self._sessions.get(request.asking.session_id)
        if session is None:
            raise NotFoundError(f"the session that left results on {self.settings.label} has ended")
        return session.results.payload(request.closure)

    async def fill(self, status: GetStatusResponse, with_variables: bool) -> None:
        """Tell what it does; it has no variables to list."""
        now, mine = time.monotonic(), status.worker_server
        for identifier, session in self._sessions.items():
            status.sessions.add(
                digest=digest_of(identifier),
                role=session.role,
                task=session.task,
                silent_seconds=now - session.heard,
            )
            mine.staying_results += len(session.results)
            mine.staying_result_bytes += session.results.nbytes
        if current := self._executor.current():
            mine.running = 1
            mine.current.CopyFrom(current)
        mine.queued = self._executor.queued
        mine.ended.update(self._executor.ended)
        if seconds := self._executor.seconds.message():
            mine.seconds.CopyFrom(seconds)
        mine.gpus = self._gpus

    async def drain(self, seconds: float) -> None:
        """Let what runs end, and end all sessions."""
        self._draining = True
        for session in self._sessions.values():
            session.leave()
        end = time.monotonic() + seconds
        while not self._executor.idle and time.monotonic() < end:
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        for session in self._sessions.values():
            session.outbox.close(self._shutting_down())

    def close(self) -> None:
        """End the thread, if what it runs lets it."""
        self._executor.close()

    def _shutting_down(self) -> UnavailableError:
        return UnavailableError(f"{self.settings.label} is shutting down", task=self.settings.label)


_SERVICE = pb.DESCRIPTOR.services_by_name["WorkerService"]


def _copy_handler(state: WorkerState, rpc: Rpc) -> Handler:
    async def copy(data: bytes, call: ServerCall) -> None:
        async with rpc.crossing(call) as crossing:
            rpc.require_sender(data)
            request = pb.CopyRequest.FromString(data)
            await crossing.admit(request)
            pieces, last = split(state.result(request))
            for piece in (*pieces, last):
                await call.write(pb.CopyResponse(piece=piece).SerializeToString())

    return grpc.unary_stream_rpc_method_handler(copy)


class _Work:
    """Calls of `Work`, each of which is a session."""

    def __init__(self, state: WorkerState, rpc: Rpc) -> None:
        self._state, self._rpc = state, rpc
        self._lease = state.settings.lease_seconds

    async def handle(self, messages: CallMessages, call: ServerCall) -> None:
        async with self._rpc.crossing(call) as crossing:
            first = await self._first(messages)
            await crossing.admit(first)
            session = self._state.open(first.open)
            reading = asyncio.create_task(self._read(session, messages))
            sending = asyncio.create_task(self._send(session, call))
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

    async def _first(self, messages: CallMessages) -> pb.WorkRequest:
        """Return the handshake with which the call begins."""
        try:
            data = await asyncio.wait_for(anext(messages, b""), self._lease)
        except asyncio.TimeoutError as error:
            raise self._lost() from error
        self._rpc.require_sender(data)
        first = pb.WorkRequest.FromString(data)
        if not first.HasField("open"):
            raise MalformedStreamError("the call does not begin with a handshake")
        return first

    async def _send(self, session: WorkSession, call: ServerCall) -> None:
        """Let the client know what happens until the session ends."""
        opened = pb.WorkResponse(opened=self._state.answer(session))
        await call.write(opened.SerializeToString())
        session.outbox.write_by(call.direct)
        async for message in session.outbox.messages():
            await call.write(message)

    async def _read(self, session: WorkSession, messages: CallMessages) -> None:
        """Let a session obey its client until that ends the call."""
        error: StratagemError | None = None

        def obey(data: bytes) -> None:
            session.obey(pb.WorkRequest.FromString(data).instructions)

        messages.divert(obey)
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


def _work_handler(state: WorkerState, rpc: Rpc) -> Handler:
    return grpc.stream_stream_rpc_method_handler(_Work(state, rpc).handle)


class WorkerServer(RpcServer):
    """One worker server, in this process.

    Functions run in a thread of its own, one at a time.
    """

    service = _SERVICE.full_name
    options = PATIENT_SERVER_OPTIONS
    # A session is one call, which its lease ends.
    patience = None

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        self.settings = settings

    def _handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        self._state = WorkerState(self.settings)
        state = self._state
        self._status = StatusService(state.handshakes, state.incarnation, state.figures, state.fill)
        boundary = RpcBoundary(state.handshakes, state.figures)
        challenges = challenge_handler(state.handshakes, lambda: state.incarnation, boundary)
        methods = {"Work": partial(_work_handler, state), "Copy": partial(_copy_handler, state)}
        return (self._status.handler(), challenges, handler_of(boundary, _SERVICE, methods))

    def _status_service(self) -> StatusService:
        return self._status

    def _listens(self, sockets: OfferedSockets) -> None:
        self._state.frame_sockets = sockets

    def _client_of(self, session_id: bytes) -> str | None:
        return self._state.client_of(session_id)

    async def _begin(self) -> None:
        self._state.begin()

    async def _refuse(self, seconds: float) -> None:
        await self._state.drain(seconds)

    async def _end(self) -> None:
        self._state.close()


def task_server(settings: TaskSettings) -> TaskServer:
    """Return a server of the worker job; it has not started.

    Raises:
        InvalidArgumentError: The address is none, there is no token, or other machines could reach
            it without `insecure`.
    """
    return WorkerServer(
        WorkerSettings(
            bind=settings.bind,
            job=settings.job,
            task=settings.task,
            token=settings.token,
            insecure=settings.insecure,
        )
    )
