"""Bringing an empty server to the state after an image and the records behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.message import Message
from typing_extensions import Self

from stratagem_proto.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    StratagemError,
)
from stratagem_proto.protocol import SESSION_ID_BYTES, release
from stratagem_proto.v1 import (
    closed_step_pb2,
    consistency_pb2,
    draws_pb2,
    publication_pb2,
    succession_pb2,
)
from stratagem_proto.v1 import log_pb2 as logged
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.barrier_pb2 import BarrierRequest
from stratagem_proto.v1.checkpoint_pb2 import RestoreVariablesRequest
from stratagem_proto.v1.closure_pb2 import EndClosuresRequest
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.variable_requests_pb2 import (
    AssignHeader,
    CreateVariablesHeader,
    DeleteVariablesRequest,
)
from stratagem_proto.wire.status import from_record
from stratagem_psserver.checkpoints import Saves
from stratagem_psserver.exactly_once.closures import Requester
from stratagem_psserver.exactly_once.mutations import RETRYABLE_ELSEWHERE, ReplayedMutations
from stratagem_psserver.exactly_once.numbering import intent_of
from stratagem_psserver.exactly_once.sessions import Session, session_of
from stratagem_psserver.persistence.images import Image
from stratagem_psserver.rpcs.checkpoints import CheckpointRpcs
from stratagem_psserver.rpcs.publication import PublicationRpcs
from stratagem_psserver.rpcs.sessions import DrawRpcs, SuccessionRpcs, end_closures
from stratagem_psserver.rpcs.steps import ConsistencyRpcs, ContributionRpcs
from stratagem_psserver.rpcs.updates import UpdateRpcs
from stratagem_psserver.rpcs.values import ValueRpcs, VariableRpcs
from stratagem_psserver.state import ServerState
from stratagem_psserver.uploads import StoredRequest
from stratagem_storage.checkpoint.index import refused_if_unsound
from stratagem_storage.log import Entry, Record

# Records that no image can lack any more are looked for whenever so many more are retained, and
# after each record that is larger than this.
_PRUNED_AT = 64
_LARGE_BYTES = 1 << 20

Placed: TypeAlias = tuple[int, Entry]
"""A record and its position."""


class RetainedRecords:
    """Records of contributions to steps of a state that are not complete.

    Args:
        state: The state, to which each record is applied when it is added here, or is next.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._entries: dict[int, Entry] = {}
        self._prune_at = _PRUNED_AT

    def note(self, record: Record) -> None:
        """Retain a record that was read, if it may have contributed."""
        if record.message.HasField("mutation"):
            self.add(record.position, Entry(record.message.SerializeToString(), record.tensors))

    def add(self, position: int, entry: Entry) -> None:
        """Retain the record of a mutation."""
        self._entries[position] = entry
        if len(self._entries) >= self._prune_at or entry.nbytes > _LARGE_BYTES:
            # The one that was just applied may be needed from now on.
            needed = {*self._needed(), position}
            self._entries = {one: self._entries[one] for one in needed & self._entries.keys()}
            self._prune_at = 2 * len(self._entries) + _PRUNED_AT

    def forget(self) -> None:
        """Retain nothing any more: changes are not recorded from now on."""
        self._entries = {}

    def _needed(self) -> Iterator[int]:
        return chain(self._state.rounds.records(), self._state.kept.records())

    def find(self, positions: Collection[int]) -> Sequence[Placed] | None:
        """Return the records at some positions, in their order; None if one is not retained."""
        if not self._entries.keys() >= {*positions}:
            return None
        return [(position, self._entries[position]) for position in sorted(positions)]


# The event loop may have other servers of the process to serve.
_AT_ONCE = 100

# Requests that can change something although they fail: a step that could not be applied is over.
_STEPS = {"CommitContribution", "FinishStep"}


class _Method(NamedTuple):
    """An RPC that changes something."""

    request: type[Message]
    call: Callable[..., Awaitable[Message]]
    has_tensors: bool = False


class Replay:
    """Applies the records of a log to a server that nobody uses yet."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._mutations = ReplayedMutations(state.ledger, state.budget)
        self._methods = _methods(state)
        self._count = 0

    async def __aenter__(self) -> Replay:
        self._live, self._state.mutations = self._state.mutations, self._mutations
        return self

    async def __aexit__(self, *_: object) -> None:
        self._state.mutations = self._live

    async def apply(self, record: Record) -> None:
        """Apply a record.

        Raises:
            DataLossError: It does not have the effect that it had before.
            FailedPreconditionError: A later release has written it.
        """
        self._count += 1
        if not self._count % _AT_ONCE:
            await asyncio.sleep(0)
        async with self._mutations.applying:
            self._state.changes.replayed = record.position
            with refused_if_unsound(f"record {record.position} of the log"):
                kind = record.message.WhichOneof("change")
                if kind == "mutation":
                    await self._mutate(record)
                elif kind is None:
                    raise _of_later_release(record.position)
                else:
                    _CHANGES[kind](self._state, getattr(record.message, kind))

    async def apply_part(self, record: Record) -> None:
        """Apply only the effect of a request on a step that is not complete.

        The state has all its other effects already.
        """
        with refused_if_unsound(f"record {record.position} of the log"):
            method = self._methods[record.message.mutation.method]
            request: Any = method.request.FromString(record.message.mutation.request)
            async with self._mutations.applying:
                self._state.changes.replayed = record.position
                await method.call(request, StoredRequest(request, record.tensors))

    async def _mutate(self, record: Record) -> None:
        mutation, gate = record.message.mutation, self._state.gate
        if (method := self._methods.get(mutation.method)) is None:
            raise _of_later_release(record.position)
        request: Any = method.request.FromString(mutation.request)
        session, key = self._mutations.session(request), request.key
        gate.finish(session.client, session.label, key.finished, key.report)
        gate.admits(session.client, session.label, key.step, 0.0)
        gate.end_request()
        is_of_closure = key.HasField("closure")
        if not is_of_closure:
            with suppress(InvalidArgumentError):
                self._state.ledger.counted.begin(session, request)
        if _changes_something(mutation, request):
            chunks = (StoredRequest(request, record.tensors),) if method.has_tensors else ()
            with suppress(StratagemError):
                await method.call(request, *chunks)
            _require_same(record, self._mutations.reply)
        if mutation.applied and is_of_closure:
            self._note_closure(session, request, mutation.reply)
        elif mutation.applied and not mutation.reply.status.code:
            self._state.ledger.counted.applied(session, request, mutation.reply.response)
        session.numbering.repeat(key, mutation.reply)

    def _note_closure(self, session: Session, request: Any, reply: RecordedReply) -> None:
        key = request.key.closure
        kept = RecordedReply()
        kept.CopyFrom(reply)
        kept.sequence = key.ordinal
        passes = reply.status.code and isinstance(from_record(reply.status), RETRYABLE_ELSEWHERE)
        user, outcome = Requester.from_session(session), None if passes else kept
        self._state.closures.finish(key, intent_of(request), outcome, user)


def _changes_something(mutation: logged.LoggedMutation, request: Any) -> bool:
    if not mutation.applied or not mutation.reply.status.code:
        return mutation.applied
    # Whose contribution was refused is a member of the group all the same. Others that failed have
    # changed nothing.
    stages = mutation.method == "Update" and request.HasField("contribution")
    return stages or mutation.method in _STEPS


def _of_later_release(position: int) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"record {position} of the log is of a kind that stratagem {release()} does not know, so a "
        "later release has written it; `stratagem log inspect` tells which. Start the server with "
        "that one"
    )


def _require_same(record: Record, reply: RecordedReply | None) -> None:
    mutation = record.message.mutation
    was, status = mutation.reply, mutation.reply.status
    if reply and (reply.response, reply.status.code) == (was.response, status.code):
        return
    now = from_record(reply.status).message if reply and reply.status.code else "another reply"
    raise DataLossError(
        f"record {record.position} of the log, {mutation.method}, does not have the effect that it "
        f"had before: {now}. Start the server with the settings and the release that wrote the "
        "log, or move its folder away and restore a checkpoint"
    )


def _methods(state: ServerState) -> Mapping[str, _Method]:
    updates, variables = UpdateRpcs(state), VariableRpcs(state)
    contributions, draws = ContributionRpcs(state), DrawRpcs(state)
    return {
        "CreateVariables": _Method(CreateVariablesHeader, variables.create, True),
        "DeleteVariables": _Method(DeleteVariablesRequest, variables.delete),
        "Assign": _Method(AssignHeader, ValueRpcs(state).assign, True),
        "Update": _Method(pb.UpdateHeader, updates.update, True),
        "UpdateNonSlot": _Method(pb.UpdateHeader, updates.update_non_slot, True),
        "CommitContribution": _Method(pb.CommitContributionRequest, contributions.commit_now),
        "FinishStep": _Method(closed_step_pb2.FinishStepRequest, contributions.finish),
        "SetConsistency": _Method(
            consistency_pb2.SetConsistencyRequest, ConsistencyRpcs(state).change
        ),
        "OpenPass": _Method(draws_pb2.OpenPassRequest, draws.open),
        "DrawBatch": _Method(draws_pb2.DrawBatchRequest, draws.draw),
        "Succeed": _Method(succession_pb2.SucceedRequest, SuccessionRpcs(state).succeed),
        "Publish": _Method(publication_pb2.PublishHeader, PublicationRpcs(state).publish, True),
        "RestoreVariables": _Method(
            RestoreVariablesRequest, CheckpointRpcs(state, Saves(state)).restore
        ),
    }


def _open(state: ServerState, opened: logged.OpenedSession) -> None:
    filtered = opened.filtered if opened.HasField("filtered") else None
    state.open_session(session_of(opened, opened.session_id), filtered, opened.ps_tasks)


def _end(state: ServerState, ended: logged.EndedSession) -> None:
    session = state.ledger.close(ended.session_id)
    if session is not None:
        state.session_ended(session, ended.why, ended.left)


def _finish(state: ServerState, steps: logged.FinishedSteps) -> None:
    session = state.ledger.known(steps.session_id)
    if session is not None:
        state.gate.finish(session.client, session.label, steps.finished, steps.report)


def _meet(state: ServerState, request: BarrierRequest) -> None:
    session = state.ledger.known(request.session_id)
    # A request that was refused is refused again.
    if session is not None:
        with suppress(StratagemError):
            state.meet(request, session)


def _arrive(state: ServerState, arrival: logged.StepArrival) -> None:
    session = state.ledger.known(arrival.session_id)
    if session is not None:
        with suppress(StratagemError):
            state.clocks.arrive(arrival.begin, session, arrival.closed)


def _permit(state: ServerState, permit: logged.StepPermit) -> None:
    granted = state.clocks.grant(permit.group, permit.worker, permit.closed)
    if granted is None or granted.step != permit.step:
        raise DataLossError(
            f"the log has a permit for step {permit.step} of {permit.group!r} that worker "
            f"{permit.worker} does not get again; start the server with the release that wrote it"
        )


def _end_closures(state: ServerState, request: EndClosuresRequest) -> None:
    session = state.ledger.known(request.session_id)
    # Earlier releases recorded what they refused.
    if session is not None and len(request.space) == SESSION_ID_BYTES:
        end_closures(state, request, session)


def _reclaim(state: ServerState, _: bool) -> None:
    state.rounds.reclaim()


def _give_up(state: ServerState, workers: logged.GivenUpWorkers) -> None:
    state.give_up(workers.tasks)


def _pass(state: ServerState, passage: logged.TablePassage) -> None:
    arena = state.store.get(passage.variable).arena
    if arena is not None:
        arena.table.pass_time(passage.milliseconds)
        state.store.recount([passage.variable])


_CHANGES: Mapping[str, Callable[[ServerState, Any], object]] = {
    "opened": _open,
    "ended": _end,
    "finished": _finish,
    "barrier": _meet,
    "arrival": _arrive,
    "permit": _permit,
    "closures": _end_closures,
    "reclaimed": _reclaim,
    "gave_up": _give_up,
    "passed": _pass,
    "mark": lambda state, _: None,
}


class Recovery:
    """Applies records behind an image, in a context after which the server may be used.

    Args:
        state: The state of the server, which is empty and which nobody uses yet.
        image: The image; None if the records are all that there is.
        retained: Notes what an image of the state may lack; None if nobody needs to know.
    """

    def __init__(
        self, state: ServerState, image: Image | None, retained: RetainedRecords | None = None
    ) -> None:
        self._state, self._image, self._retained = state, image, retained
        self._replay = Replay(state)
        self._last = image.position if image else 0
        self._needed = {*image.exact["records"]} if image else set()
        self._is_complete = False

    async def __aenter__(self) -> Self:
        if self._image is not None:
            await self._image.restore(self._state)
            self._state.changes.replayed = self._image.position
        await self._replay.__aenter__()
        if not self._needed:
            self._complete()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            if self._needed:
                raise DataLossError(
                    f"the log of {self._state.settings.label} has no record {min(self._needed)}, "
                    "which its image lacks: it has lost its end. Restore the files from a backup, "
                    "or move the folder away and restore a checkpoint"
                )
            self._complete()
        await self._replay.__aexit__(kind, error, traceback)

    async def add(self, record: Record) -> None:
        """Apply a record, or only what the image lacks of it; raise as `Replay.apply`."""
        if record.position > self._last:
            self._complete()
            await self._replay.apply(record)
        elif record.position in self._needed:
            await self._replay.apply_part(record)
            self._needed.discard(record.position)
            if not self._needed:
                self._complete()
        if self._retained is not None:
            self._retained.note(record)

    def _complete(self) -> None:
        """Go on from the image, once the contributions that it lacks are there."""
        if self._image is not None and not self._is_complete:
            self._state.rounds.complete_groups(self._image.exact["groups"])
        self._is_complete = True
