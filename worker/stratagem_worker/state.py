"""All that a worker process holds, wired together."""

from __future__ import annotations

import asyncio
import os
import time

from stratagem._core.device_names import list_logical_devices
from stratagem._remote_kinds import KINDS
from stratagem._shipping.kinds import WorkerTask
from stratagem._shipping.loader import Loader
from stratagem._shipping.outcome_forms import form_for
from stratagem._worker_client.link import this_runtime
from stratagem_proto.errors import FailedPreconditionError, NotFoundError, UnavailableError
from stratagem_proto.protocol import PROTOCOL_VERSION, SESSION_ID_BYTES, digest_of
from stratagem_proto.serving.certified_callers import certificate_of_caller
from stratagem_proto.serving.figures import Figures
from stratagem_proto.serving.handshake import Handshakes
from stratagem_proto.sockets.server.listening import OfferedSockets
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.session_pb2 import OpenSessionResponse, Task
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_proto.v1.worker_pb2 import Runtime
from stratagem_worker.functions.executor import Executor
from stratagem_worker.functions.interruption import Interruptible
from stratagem_worker.results import ResultMemory, StayingResults
from stratagem_worker.sessions.session import Running, WorkSession
from stratagem_worker.settings import WorkerSettings


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


_GLANCE_SECONDS = 0.02


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
        """Start the thread."""
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
                protocol_version=PROTOCOL_VERSION,
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
        mine.running = int(self._executor.running)
        if current := self._executor.current():
            mine.current.CopyFrom(current)
        mine.queued = self._executor.queued
        mine.ended.update(self._executor.figures.ended)
        if seconds := self._executor.figures.seconds.message():
            mine.seconds.CopyFrom(seconds)
        mine.gpus = self._gpus

    async def drain(self, seconds: float) -> None:
        """Let what runs end, and end all sessions."""
        self._draining = True
        for session in self._sessions.values():
            session.leave()
        end = time.monotonic() + seconds
        while not self._executor.idle and time.monotonic() < end:
            await asyncio.sleep(_GLANCE_SECONDS)
        for session in self._sessions.values():
            session.outbox.close(self._shutting_down())

    def close(self) -> None:
        """End the thread, if what it runs lets it."""
        self._executor.close()

    def _shutting_down(self) -> UnavailableError:
        return UnavailableError(f"{self.settings.label} is shutting down", task=self.settings.label)
