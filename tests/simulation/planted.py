"""Faults of a server, planted into the real code, which the simulation has to find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from google.protobuf.message import Message

from stratagem_proto.log import segments as log_segments
from stratagem_proto.log.segments import segments_in
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import OpenSessionRequest, OpenSessionResponse, RequestKey
from stratagem_proto.wire.tensors import as_bytes
from stratagem_psserver.checkpoint_gate import CheckpointGate
from stratagem_psserver.consistency.barrier import Barriers
from stratagem_psserver.consistency.rules import BoundedRule, StepRule
from stratagem_psserver.consistency.schedule import Schedule
from stratagem_psserver.data.data_ledger import DataLedger, Function
from stratagem_psserver.exactly_once.closures import ClosureLedger
from stratagem_psserver.exactly_once.intents import Mutation
from stratagem_psserver.exactly_once.ledger import SessionLedger
from stratagem_psserver.exactly_once.manifest import Manifest
from stratagem_psserver.exactly_once.numbering import Admission, Apply, Numbering, WaitForEarlier
from stratagem_psserver.exactly_once.receiving import StagedTensors
from stratagem_psserver.log import segment_writer
from stratagem_psserver.log.changes import Changes, LoggedRequest
from stratagem_psserver.persistence import folder
from stratagem_psserver.persistence.folder import StateFolder
from stratagem_psserver.rpcs import values
from stratagem_psserver.rpcs.sessions import SessionRpcs
from stratagem_psserver.state import ServerState
from stratagem_psserver.synchronous.rounds import Rounds
from stratagem_psserver.synchronous.step_group import StepGroup
from stratagem_psserver.variables.assignments import PreparedWrite

Plant = Callable[[], AbstractContextManager[object]]

# A fault that strikes each time would be found by any test.
_EVERY = 5
_times = count(1)


def _strikes() -> bool:
    return next(_times) % _EVERY == 0


def _replaced(owner: object, name: str, value: object) -> Plant:
    return lambda: patch.object(owner, name, value)


_finish, _outcome, _admit = Numbering.finish, Numbering.outcome, Numbering.admit
_open, _close_session = SessionLedger.open, ServerState.close_session
_record_mutation, _draw = ClosureLedger.finish, DataLedger.draw
_change, _shake_hands = Schedule.change, SessionRpcs.open
_has_intact_batch = log_segments._has_intact_batch
_owned, _logged, _mutated = StagedTensors.owned, Changes.request, Changes.mutated
_is_to_drop, _admits = StepGroup.is_to_drop, CheckpointGate.admits


def _forgets_reply(self: Numbering, reply: RecordedReply | None) -> None:
    """Note that a request was applied, and now and then not what was answered."""
    _finish(self, None if _strikes() else reply)


def _records_late(self: Numbering, reply: RecordedReply | None) -> None:
    """Record a reply only when the next one comes."""
    late: RecordedReply | None = self.__dict__.pop("late", None)
    self.__dict__["late"] = reply
    _finish(self, late)


def _loses_numbering(self: SessionLedger, *arguments: Any) -> Any:
    """Resume a session without what is known of its requests."""
    session = _open(self, *arguments)
    session.numbering = Numbering()
    return session


def _takes_stale_acknowledgement(self: Numbering, key: RequestKey) -> Any:
    """Go back to what a late request says was acknowledged."""
    self.acknowledged = min(self.acknowledged, key.acknowledged)
    return _outcome(self, key)


def _applies_out_of_turn(self: Numbering, key: RequestKey) -> Admission:
    """Let requests overtake each other."""
    decided = _admit(self, key)
    if isinstance(decided, WaitForEarlier) and self._applying is None:
        self._applying = key.sequence
        return Apply()
    return decided


def _allows_one_more(self: BoundedRule, ahead: int) -> bool:
    return ahead > self.message.bound + 1


def _lets_pass(self: Barriers, name: str, generation: int, session_id: bytes) -> bool:
    return True


def _reads_at_once(self: Rounds, mark: Any) -> bool:
    return True


def _counts_again(self: StepGroup, part: Any) -> bool:
    """Add what a worker that was started again contributes to what it had contributed."""
    if part.contribution.replicas_to_aggregate:
        return _is_to_drop(self, part)
    return False


def _owes_nothing(self: StepGroup, step: int, parts: Any) -> None:
    """Drop what was committed, and let others go on as if other servers had, too."""


def _loses_slots(self: ServerState, session_id: bytes) -> None:
    """Begin all slots anew when a client leaves."""
    for variable in self.store.variables():
        if variable.spec.slot_of:
            variable.value.zero_()
    _close_session(self, session_id)


def _keeps_version(write: PreparedWrite) -> int:
    """Give two values of a variable the same version now and then."""
    write.variable.version += not _strikes()
    return write.variable.version


def _forgets_mutation(self: ClosureLedger, key: Any, intent: Any, reply: Any) -> None:
    """Do not know a function again that runs on another worker."""
    _record_mutation(self, key, intent, None)


def _hands_out_again(self: DataLedger, number: int, function: Function) -> int | None:
    batch = _draw(self, number, function)
    if batch is not None and _strikes():
        self.passes[number].drawn -= 1
    return batch


def _admits_all(self: CheckpointGate, client: bytes, label: str, step: int, now: float) -> bool:
    """Hold no step back while all servers look for one moment."""
    hold, self._hold = self._hold, None
    admitted = _admits(self, client, label, step, now)
    self._hold = hold
    return admitted


async def _opens_with_any_run(
    self: SessionRpcs, request: OpenSessionRequest
) -> OpenSessionResponse:
    """Take a handshake that names no run for one with this run."""
    request.incarnation = request.incarnation or self._state.incarnation
    return await _shake_hands(self, request)


def _changes_early(self: Schedule, rule: StepRule, begun: int) -> int:
    """Let a change apply to a step that some worker has begun already."""
    return _change(self, rule, begun - 1)


async def _answers_at_once(self: Changes) -> None:
    """Let answers leave whose records are not on disk yet."""


def _copies_nothing(self: StagedTensors, manifest: Manifest) -> StagedTensors:
    """Apply tensors from memory that their client can still change."""
    return self


class _Copied(list[torch.Tensor]):
    """Tensors that were copied out of shared memory."""

    shared: Sequence[torch.Tensor]


class _LateRequest(LoggedRequest):
    """A request whose tensors are taken when it is logged."""

    shared: Sequence[torch.Tensor]


def _remembers_shared(self: StagedTensors, manifest: Manifest) -> StagedTensors:
    owned = _owned(self, manifest)
    if self.segment is None:
        return owned
    copied = _Copied(owned.tensors)
    copied.shared = self.tensors
    return replace(owned, tensors=copied)


def _takes_late(
    self: Changes, response_type: type[Message], request: Mutation, tensors: Any = ()
) -> LoggedRequest | None:
    logged = _logged(self, response_type, request, tensors)
    if logged is None or not isinstance(tensors, _Copied):
        return logged
    late = _LateRequest(logged.method, logged.request)
    late.shared = tensors.shared
    return late


def _logs_late(self: Changes, request: LoggedRequest, reply: RecordedReply | None) -> None:
    """Log what is in shared memory once a request was applied, in place of the copy."""
    if isinstance(request, _LateRequest):
        request.tensors = b"".join(map(as_bytes, request.shared))
    _mutated(self, request, reply)


@contextmanager
def _logging_from_shared_memory() -> Iterator[None]:
    with (
        patch.object(StagedTensors, "owned", _remembers_shared),
        patch.object(Changes, "request", _takes_late),
        patch.object(Changes, "mutated", _logs_late),
    ):
        yield


def _restores_no_reply(self: Numbering, key: RequestKey, reply: RecordedReply) -> None:
    """Start again without what sessions were answered."""


def _syncs_nothing(path: Path) -> None:
    """Leave the names in a folder to the system."""


def _trusts_memory(self: StateFolder) -> None:
    """Take what the system has in memory for what is on disk."""


def _takes_old_for_later(data: memoryview, least: int) -> bool:
    """Take what an earlier use of the file has left for what was written later."""
    return _has_intact_batch(data, 0)


def _cuts_nothing(file: int, end: int) -> None:
    """Leave behind the end of a segment what its file had before."""


def _reads_all(self: StateFolder, needed: int = 1) -> list[Path]:
    """Read segments, too, that were removed before a loss of power."""
    return segments_in(self.path)


PLANTED: Mapping[str, Plant] = {
    "a reply is not recorded": _replaced(Numbering, "finish", _forgets_reply),
    "a reply is recorded too late": _replaced(Numbering, "finish", _records_late),
    "the ledger of a session is lost": _replaced(SessionLedger, "open", _loses_numbering),
    "a stale acknowledgement counts": _replaced(Numbering, "outcome", _takes_stale_acknowledgement),
    "requests overtake each other": _replaced(Numbering, "admit", _applies_out_of_turn),
    "a bound is off by one": _replaced(BoundedRule, "holds_back", _allows_one_more),
    "a barrier is forgotten": _replaced(Barriers, "is_passed", _lets_pass),
    "reads do not wait for their step": _replaced(Rounds, "is_applied", _reads_at_once),
    "a contribution counts twice": _replaced(StepGroup, "is_to_drop", _counts_again),
    "dropped contributions are forgotten": _replaced(StepGroup, "_owe", _owes_nothing),
    "slots are lost": _replaced(ServerState, "close_session", _loses_slots),
    "a version is used again": _replaced(values, "_next_version", _keeps_version),
    "a function's mutation is forgotten": _replaced(ClosureLedger, "finish", _forgets_mutation),
    "a batch is handed out twice": _replaced(DataLedger, "draw", _hands_out_again),
    "steps are not held": _replaced(CheckpointGate, "admits", _admits_all),
    "a session is with any run": _replaced(SessionRpcs, "open", _opens_with_any_run),
    "a change is a step too early": _replaced(Schedule, "change", _changes_early),
    "an answer leaves before its record": _replaced(Changes, "durable", _answers_at_once),
    "shared memory is not copied": _replaced(StagedTensors, "owned", _copies_nothing),
    "the log is from shared memory": _logging_from_shared_memory,
    "replies are lost at a restart": _replaced(Numbering, "repeat", _restores_no_reply),
    "a segment's name is not on disk": _replaced(segment_writer, "sync_folder", _syncs_nothing),
    "a server's folder is not on disk": _replaced(folder, "sync_folder", _syncs_nothing),
    "memory is taken for the disk": _replaced(StateFolder, "settle", _trusts_memory),
    "old batches are taken for later ones": _replaced(
        log_segments, "_has_intact_batch", _takes_old_for_later
    ),
    "a segment keeps what was behind its end": _replaced(segment_writer, "_cut", _cuts_nothing),
    "removed segments are read": _replaced(StateFolder, "segments", _reads_all),
}
