"""What the parts of a server tell its log of their changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from google.protobuf.message import Message

from stratagem_proto.protocol import session_name
from stratagem_proto.v1 import log_pb2 as pb
from stratagem_proto.v1.barrier_pb2 import BarrierRequest
from stratagem_proto.v1.closure_pb2 import EndClosuresRequest
from stratagem_proto.v1.consistency_pb2 import StepBegin
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import FilteredTasks, RequestKey, Role, Task
from stratagem_proto.v1.status_pb2 import LogStatus
from stratagem_proto.wire.tensors import as_bytes
from stratagem_psserver.log.history import History

# Mutations that may have changed something although they failed for lack of memory.
_HALF_DONE = {"CommitContribution", "FinishStep"}


class Mutation(Protocol):
    """A request that changes something, or its header."""

    @property
    def key(self) -> RequestKey:
        """The identity of the request."""

    def SerializeToString(self) -> bytes:
        """Return it as bytes."""


class OpenSession(Protocol):
    """A session, as in `OpenSessionRequest`."""

    id: bytes
    role: Role
    task: Task
    client: bytes
    program: bytes
    process: bytes


class RecordLog(Protocol):
    """What takes the records of changes: a `Log` on disk, or that of a primary with a backup.

    Attributes:
        position: The position of the last record.
        awaited: That of the last one for which answers wait.
    """

    position: int
    awaited: int

    def append(
        self, record: pb.LogRecord, tensors: bytes | memoryview = b"", is_awaited: bool = True
    ) -> int:
        """Add a record behind all others, and return its position."""

    def leap(self) -> None:
        """Add a record that only an image can follow."""

    async def caught_up(self) -> None:
        """Wait while more records are under way than memory is for."""

    async def durable(self) -> None:
        """Wait until no end of this process can lose what is to be told now."""

    async def on_disk(self, position: int) -> None:
        """Wait until the record of that position is on disk, if there is one for it."""

    def report(self) -> LogStatus | None:
        """Return the message that describes it for people; None if it is not on disk."""


class LoggedRequest:
    """A mutation on its way into the log.

    Args:
        method: The name of its RPC.
        request: It serialised, or its header if it has tensors.
        tensors: The bytes of its tensors, as they were before it was applied.

    Attributes:
        applied: Whether its change has begun.
    """

    __slots__ = ("applied", "method", "request", "tensors")

    def __init__(self, method: str, request: bytes, tensors: bytes = b"") -> None:
        self.method, self.request, self.tensors = method, request, tensors
        self.applied = False


class Changes:
    """Records the changes of a server; without a log, nothing.

    Attributes:
        log: The log; None if the server keeps none, or has not read it yet.
        replayed: While the server reads its log, the position of the record that is applied.
        history: Which runs of the server's process have recorded them.
    """

    def __init__(self) -> None:
        self.log: RecordLog | None = None
        self.replayed = 0
        self.history = History()

    def request(
        self,
        response_type: type[Message],
        request: Mutation,
        tensors: Sequence[torch.Tensor] = (),
    ) -> LoggedRequest | None:
        """Return a mutation for `mutated`; None if nothing is recorded.

        Args:
            response_type: The class of its response, which names the RPC.
            request: The request, or its header if it has tensors.
            tensors: Its tensors, which are copied.
        """
        if self.log is None:
            return None
        method = response_type.DESCRIPTOR.name.removesuffix("Response")
        content = b"".join(map(as_bytes, tensors))
        return LoggedRequest(method, _text_of(request), content)

    @property
    def present(self) -> int:
        """The position of the record of the mutation that is applied now.

        It is that of the next record as long as the mutation does not wait before its end.
        """
        return self.replayed if self.log is None else self.log.position + 1

    @property
    def last(self) -> int:
        """The position of the last change, while nothing is being applied."""
        return self.replayed if self.log is None else self.log.position

    @property
    def reached(self) -> bytes:
        """What an answer tells of how far the server has come; it leaves once that is `durable`."""
        return self.history.reached(self.replayed if self.log is None else self.log.awaited)

    async def caught_up(self) -> None:
        """Wait while more records await the disk than memory is for.

        Raises:
            UnavailableError: The disk does not take records.
        """
        if self.log is not None:
            await self.log.caught_up()

    async def durable(self) -> None:
        """Wait until all changes so far are on disk.

        Raises:
            UnavailableError: The disk takes too long or fails.
        """
        if self.log is not None:
            await self.log.durable()

    def mutated(self, request: LoggedRequest, reply: RecordedReply | None) -> None:
        """Record a mutation and the reply to its repetitions.

        Args:
            request: The mutation.
            reply: The reply; None if it failed for a reason that will pass.
        """
        if reply is None:
            if request.applied and request.method in _HALF_DONE:
                self.leapt()
        elif self.log is not None:
            mutation = pb.LoggedMutation(
                method=request.method,
                request=request.request,
                reply=reply,
                applied=request.applied,
            )
            self.log.append(pb.LogRecord(mutation=mutation), request.tensors)

    def opened(self, session: OpenSession, filtered: FilteredTasks | None, ps_tasks: int) -> None:
        """Record that a session was opened or resumed, and what a chief has said with it."""
        opened = pb.OpenedSession(
            session_id=session.id,
            role=session.role,
            task=session.task,
            client=session.client,
            program=session.program,
            process=session.process,
            filtered=filtered,
            ps_tasks=ps_tasks,
        )
        self._append(pb.LogRecord(opened=opened))

    def ended(self, session_id: bytes, why: str, left: bool) -> None:
        """Record that a session has ended."""
        ended = pb.EndedSession(session_id=session_id, why=why, left=left)
        self._append(pb.LogRecord(ended=ended))

    def finished(self, session_id: bytes, step: int, report: bytes) -> None:
        """Record what a client has finished, which no mutation says and the client says again."""
        if self.log is not None:
            steps = pb.FinishedSteps(session_id=session_id, finished=step, report=report)
            self.log.append(pb.LogRecord(finished=steps), is_awaited=False)

    def met(self, request: BarrierRequest) -> None:
        """Record that a task has arrived at a barrier."""
        record = pb.LogRecord(barrier=request)
        record.barrier.session_id = session_name(request.session_id)
        self._append(record)

    def arrived(self, session_id: bytes, begin: StepBegin, closed: int) -> None:
        """Record that a worker wants to begin a step."""
        if self.log is not None:
            arrival = pb.StepArrival(session_id=session_id, begin=begin, closed=closed)
            self.log.append(pb.LogRecord(arrival=arrival))

    def permitted(self, begin: StepBegin, closed: int, step: int) -> None:
        """Record the permit that a worker got."""
        if self.log is not None:
            permit = pb.StepPermit(group=begin.group, worker=begin.worker, closed=closed, step=step)
            self.log.append(pb.LogRecord(permit=permit))

    def closures_ended(self, request: EndClosuresRequest) -> None:
        """Record that scheduled functions have ended."""
        record = pb.LogRecord(closures=request)
        record.closures.session_id = session_name(request.session_id)
        self._append(record)

    def reclaimed(self) -> None:
        """Record that contributions of workers that are gone were dropped."""
        self._append(pb.LogRecord(reclaimed=True))

    def gave_up(self, tasks: Sequence[str]) -> None:
        """Record that others wait no more for workers that are gone."""
        self._append(pb.LogRecord(gave_up=pb.GivenUpWorkers(tasks=tasks)))

    def passed(self, table: str, milliseconds: int) -> None:
        """Record that time has passed for a table, and idle rows with it."""
        passage = pb.TablePassage(variable=table, milliseconds=milliseconds)
        self._append(pb.LogRecord(passed=passage))

    def leapt(self) -> None:
        """Record that the state has changed in a way that no record can repeat."""
        if self.log is not None:
            self.log.leap()

    def _append(self, record: pb.LogRecord) -> None:
        if self.log is not None:
            self.log.append(record)


def _text_of(request: Mutation) -> bytes:
    """Return a request as bytes, with the name of its session in place of what it shows."""
    key, shown = request.key, request.key.session_id
    key.session_id = session_name(shown)
    try:
        return request.SerializeToString()
    finally:
        key.session_id = shown
