"""The RPCs by which a server takes part in checkpoints and snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from stratagem_proto.errors import AbortedError, InvalidArgumentError, PermissionDeniedError
from stratagem_proto.v1 import checkpoint_pb2 as pb
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_psserver.checkpoint_gate import STEPS, Progress
from stratagem_psserver.checkpoints import Saved, Saves
from stratagem_psserver.exactly_once.counted_steps import check_positions
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.restoration import (
    StagedVariables,
    check_run,
    read_accounts,
    read_restored,
    replace,
)
from stratagem_psserver.state import ServerState
from stratagem_psserver.variables.locks import LockUse
from stratagem_psserver.waiting import Waiter, unfinished_steps
from stratagem_storage.checkpoint.folder import Checkpoint, open_checkpoint
from stratagem_storage.checkpoint.policy import CheckpointPolicy
from stratagem_storage.stores.places import shared_place


class CheckpointRpcs:
    """The CheckpointService."""

    def __init__(self, state: ServerState, saves: Saves) -> None:
        self._state, self._saves = state, saves

    async def hold(self, request: pb.HoldStepsRequest) -> pb.HoldStepsResponse:
        state, gate = self._state, self._state.gate
        session = state.finished(request.session_id, request.finished, request.report)
        begun = {each.client: each.step for each in request.begun}
        gate.hold(request.cut, begun, self._state.clock())
        state.waits.changed(STEPS)

        def finished() -> bool | None:
            known = gate.progress().values()
            return all(each.finished >= each.begun for each in known) or None

        waiter = Waiter(
            session.label, "the moment of a checkpoint", partial(unfinished_steps, gate)
        )
        await state.waits.until(STEPS, finished, request.wait_seconds, waiter)
        return pb.HoldStepsResponse(
            clients=[_encoded_progress(each, id_) for id_, each in gate.progress().items()],
            left=map(_encoded_progress, gate.left()),
            published=state.publication.version,
        )

    async def release(self, request: pb.ReleaseStepsRequest) -> pb.ReleaseStepsResponse:
        self._state.session(request.session_id)
        self._release(request.cut)
        return pb.ReleaseStepsResponse()

    def _release(self, cut: bytes) -> None:
        self._state.gate.release(cut)
        self._state.waits.changed(STEPS)

    async def begin(self, request: pb.BeginSaveRequest) -> pb.BeginSaveResponse:
        session = self._state.session(request.session_id)
        if not self._saves.knows(request.cut):
            begin = partial(self._saves.begin, request.cut, request.folder, request.base)
            await self._run_at_cut(session.label, request.cut, begin)
        return pb.BeginSaveResponse()

    async def open_snapshot(self, request: pb.OpenSnapshotRequest) -> pb.OpenSnapshotResponse:
        state, cut = self._state, request.cut
        session = state.session(request.session_id)

        def hold() -> None:
            state.ledger.session(session.id, state.clock())  # it may have ended meanwhile
            state.held.hold(session.id, cut, state.store)

        if not state.held.knows(session.id, cut):
            await self._run_at_cut(session.label, cut, hold)
        return pb.OpenSnapshotResponse()

    async def close_snapshot(self, request: pb.CloseSnapshotRequest) -> pb.CloseSnapshotResponse:
        session = self._state.session(request.session_id)
        self._state.held.release(session.id)
        return pb.CloseSnapshotResponse()

    async def _run_at_cut(self, label: str, cut: bytes, action: Callable[[], None]) -> None:
        """Call a function while no request is being applied, then end the cut.

        Args:
            label: The client that takes the cut.
            cut: The cut.
            action: The function.
        """
        state, gate = self._state, self._state.gate

        def idle() -> bool | None:
            # This counts the requests of clients that do not number their steps, too.
            return not gate.applying or None

        seconds = gate.remaining(self._state.clock())
        waiter = Waiter(label, "the end of all requests under way", partial(unfinished_steps, gate))
        quiet = await state.waits.until(STEPS, idle, seconds, waiter)
        if not quiet or not gate.holds(cut, self._state.clock()):
            raise AbortedError("the steps were held for too long; try again")
        try:
            action()
        finally:
            self._release(cut)

    async def finish(self, request: pb.FinishSaveRequest) -> pb.FinishSaveResponse:
        self._state.session(request.session_id)
        saved = await self._saves.finish(request.cut, request.wait_seconds)
        return pb.FinishSaveResponse(part=_encoded_part(saved) if saved else None)

    async def stage(self, request: pb.StageVariablesRequest) -> pb.StageVariablesResponse:
        state = self._state
        session = state.session(request.session_id)
        if not request.path:
            state.staging.forget(session.id)
            return pb.StageVariablesResponse()
        specs = [state.store.get(name).spec for name in request.variables]
        # Reading waits for the disk, so it always runs in a thread.
        read = partial(state.compute.run, partial(_read, request, specs, state), 1 << 30)
        reading = state.staging.reading(session.id, request, read)
        await asyncio.wait([reading], timeout=request.wait_seconds or None)
        if not reading.done():
            return pb.StageVariablesResponse(is_reading=True)
        if reading.exception() is not None:
            state.staging.forget(session.id)
        reading.result()
        # It may have ended meanwhile, and what it had staged is forgotten.
        state.ledger.session(session.id, state.clock())
        return pb.StageVariablesResponse()

    async def restore(self, request: pb.RestoreVariablesRequest) -> pb.RestoreVariablesResponse:
        return await self._state.mutations.once(
            request, partial(self._restore, request), pb.RestoreVariablesResponse
        )

    async def _restore(
        self, request: pb.RestoreVariablesRequest, session: Session
    ) -> pb.RestoreVariablesResponse:
        state = self._state
        check_positions(request.positions)
        check_run(request.run)
        if request.restoration:
            restored, accounts = state.staging.take(session.id, request.restoration)
            use = LockUse(session.label, "restoration")
            async with state.locked([each.name for each in restored], use):
                state.optimizers.forget(replace(state.store, restored))
                accounts.replace(state.data, state.closures)
                if request.begins_run:
                    state.ledger.counted.restart(request.positions)
                    state.restored.begin(request.run)
                state.changes.leapt()
        elif request.HasField("run"):
            if request.run.folder and state.restored.run is None:
                state.ledger.counted.restart(())
            state.restored.begin(request.run)
        if request.identity:
            state.restored.add(request.identity, session.id)
        return pb.RestoreVariablesResponse()

    async def list_restored(self, request: pb.ListRestoredRequest) -> pb.ListRestoredResponse:
        state = self._state
        label = state.session(request.session_id).label
        return pb.ListRestoredResponse(
            identities=state.restored.identities,
            run=state.restored.run,
            positions=state.ledger.counted.positions(label),
            uncounted=state.ledger.counted.has_uncounted(label),
            trained=state.ledger.counted.trained(),
        )


def _read(
    request: pb.StageVariablesRequest, specs: Sequence[VariableSpec], state: ServerState
) -> StagedVariables:
    checkpoint = _opened(request.path, state.settings.checkpoints)
    accounts = read_accounts(checkpoint, request, state.settings.task)
    return StagedVariables(read_restored(checkpoint, specs, state.store.disk), accounts)


def _opened(path: str, policy: CheckpointPolicy) -> Checkpoint:
    try:
        return open_checkpoint(shared_place(path), policy)
    except PermissionDeniedError:
        raise
    except OSError as error:
        raise InvalidArgumentError(
            f"{path!r} cannot be opened as a checkpoint: {error.strerror}"
        ) from error


def _encoded_progress(progress: Progress, client: bytes = b"") -> pb.ClientProgress:
    return pb.ClientProgress(
        client=client,
        label=progress.label,
        begun=progress.begun,
        finished=progress.finished,
        report=progress.report,
    )


def _encoded_part(saved: Saved) -> pb.SavedPart:
    part, facts = saved
    message = part.encoded()
    message.state = facts
    return message
