"""What the parts of a server tell its log of their changes, and which runs have recorded them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import torch
from google.protobuf.message import Message

from stratagem_proto.errors import InvalidArgumentError, SessionLostError
from stratagem_proto.protocol import REACHED_BYTES as _ONE
from stratagem_proto.protocol import RUN_BYTES, session_name
from stratagem_proto.v1 import log_pb2 as pb
from stratagem_proto.v1.barrier_pb2 import BarrierRequest
from stratagem_proto.v1.closure_pb2 import EndClosuresRequest
from stratagem_proto.v1.consistency_pb2 import StepBegin
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import FilteredTasks, RequestKey, Role, Task
from stratagem_proto.v1.status_pb2 import LogStatus
from stratagem_proto.wire.tensors import as_bytes

# Runs that are remembered. Clients of those before have long been gone.
_MOST_RUNS = 4096

Facts: TypeAlias = Sequence[tuple[str, int]]
"""The name of each run as hexadecimal digits, and the position of the last change before it."""


class History:
    """The runs of a server's process that have led to its state, in their order.

    A log can lose its end, for instance because its folder is restored from an older copy, and then
    grow again. So a position alone does not say which change it is that a client was told of; with
    the run that has recorded the change, it does.

    When it is used: a server that comes back from disk calls `restore` with what its image has,
    `note` for each segment of its log, and `begin` once it has replayed that; a replica that takes
    over, `begin`. From then on each answer tells `reached`, and each request is checked by
    `require`. A server whose state ends with its process begins no run, and tells nothing.

    Attributes:
        run: The name of the present run; b"" before it has begun.
    """

    def __init__(self) -> None:
        self.run: bytes = b""
        self._runs: list[tuple[bytes, int]] = []
        # The least position that answers tell of.
        self._least = 0

    def begin(self, run: bytes, after: int) -> None:
        """Begin a run of that name after the last change before it."""
        self.run = run
        # Runs that have recorded nothing that is there.
        while self._runs and self._runs[-1][1] >= after:
            del self._runs[-1]
        self._runs = [*self._runs[1 - _MOST_RUNS :], (run, after)]

    def begin_unrecorded(self, run: bytes) -> None:
        """Begin a run that records no changes, and counts as one change by itself."""
        self.begin(run, self._runs[-1][1] + 1 if self._runs else 0)
        self._least = self._runs[-1][1] + 1

    def reached(self, position: int) -> bytes:
        """Return what to tell with an answer, as in the message `Reached`.

        Args:
            position: The position of the last change that the answer may tell of.
        """
        if not self.run:
            return b""
        run, after = self._runs[-1]
        position = max(position, self._least)
        if position <= after:
            # Of this run there may be no trace after its end.
            if len(self._runs) == 1:
                return b""
            run = self._runs[-2][0]
        return run + position.to_bytes(_ONE - RUN_BYTES, "big")

    def require(self, shown: bytes, label: str) -> None:
        """Check that the server has the changes that a client was told of.

        Args:
            shown: What the client shows: what `reached` was for it, and perhaps for another client;
                b"" if nobody was told of anything.
            label: The server's name, for the message.
        """
        if not shown or not self.run or (shown[:RUN_BYTES] == self.run and len(shown) == _ONE):
            return
        if len(shown) not in (_ONE, 2 * _ONE):
            raise InvalidArgumentError(
                f"what a server has told of its changes takes {_ONE} bytes, not {len(shown)}"
            )
        for begin in range(0, len(shown), _ONE):
            run = shown[begin : begin + RUN_BYTES]
            position = int.from_bytes(shown[begin + RUN_BYTES : begin + _ONE], "big")
            if run == self.run:
                continue
            end = self._end_of(run)
            if end is not None and position <= end:
                continue
            what = "does not know of the run of it that has answered this program last"
            if end is not None:
                what = (
                    f"has {end} of the {position} changes that it had when it answered this program"
                )
            raise SessionLostError(
                f"{label} has lost changes that it had told of: it {what}. Its folder is an older "
                "copy, or its log is damaged. Restore the newest one; or start the program again, "
                "and it goes on from what there is; or restore a checkpoint"
            )

    def _end_of(self, run: bytes) -> int | None:
        """Return the position of the last change of a former run; None for one that is unknown."""
        names = [name for name, _ in self._runs]
        return self._runs[names.index(run) + 1][1] if run in names else None

    def note(self, run: bytes, after: int) -> None:
        """Note an earlier run, of which a segment of the log tells."""
        if run and run not in [name for name, _ in self._runs]:
            self._runs.append((run, after))
            self._runs.sort(key=lambda each: each[1])

    def facts(self) -> Facts:
        return [(run.hex(), after) for run, after in self._runs]

    def restore(self, facts: Facts) -> None:
        """Restore what `facts` returned; no run is the present one then."""
        self._runs = [(bytes.fromhex(run), after) for run, after in facts]


# Mutations that may have changed something although they failed for lack of memory.
_HALF_DONE = {"CommitContribution", "FinishStep"}


class Mutation(Protocol):
    """A request that changes something, or its header."""

    @property
    def key(self) -> RequestKey: ...

    def SerializeToString(self) -> bytes: ...


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
        """Return a mutation for `mutated`, with copies of tensors; None if nothing is recorded."""
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
        """As `RecordLog.caught_up`; raise UnavailableError if the disk does not take records."""
        if self.log is not None:
            await self.log.caught_up()

    async def durable(self) -> None:
        """As `RecordLog.durable`; raise UnavailableError if the disk takes too long or fails."""
        if self.log is not None:
            await self.log.durable()

    def mutated(self, request: LoggedRequest, reply: RecordedReply | None) -> None:
        """Record a mutation and the reply to its repetitions; None if it failed for a moment."""
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
        ended = pb.EndedSession(session_id=session_id, why=why, left=left)
        self._append(pb.LogRecord(ended=ended))

    def finished(self, session_id: bytes, step: int, report: bytes) -> None:
        """Record what a client has finished, which no mutation says and the client says again."""
        if self.log is not None:
            steps = pb.FinishedSteps(session_id=session_id, finished=step, report=report)
            self.log.append(pb.LogRecord(finished=steps), is_awaited=False)

    def met(self, request: BarrierRequest) -> None:
        record = pb.LogRecord(barrier=request)
        record.barrier.session_id = session_name(request.session_id)
        self._append(record)

    def arrived(self, session_id: bytes, begin: StepBegin, closed: int) -> None:
        if self.log is not None:
            arrival = pb.StepArrival(session_id=session_id, begin=begin, closed=closed)
            self.log.append(pb.LogRecord(arrival=arrival))

    def permitted(self, begin: StepBegin, closed: int, step: int) -> None:
        if self.log is not None:
            permit = pb.StepPermit(group=begin.group, worker=begin.worker, closed=closed, step=step)
            self.log.append(pb.LogRecord(permit=permit))

    def closures_ended(self, request: EndClosuresRequest) -> None:
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
