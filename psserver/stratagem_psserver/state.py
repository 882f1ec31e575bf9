"""The state of a server process: all its parts, wired together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from functools import partial

from stratagem_proto.protocol import SESSION_ID_BYTES, session_name
from stratagem_proto.v1.barrier_pb2 import BarrierRequest
from stratagem_proto.v1.parameter_server_pb2 import StepMark
from stratagem_proto.v1.session_pb2 import FilteredTasks
from stratagem_proto.v1.status_pb2 import LostClient
from stratagem_psserver.checkpoint_gate import STEPS, CheckpointGate
from stratagem_psserver.cluster import KnownCluster
from stratagem_psserver.consistency.barriers import Barriers, InputOrders
from stratagem_psserver.consistency.clocks import Clocks
from stratagem_psserver.consistency.formations import Formations
from stratagem_psserver.data_ledgers import DataLedgers
from stratagem_psserver.environment import Environment
from stratagem_psserver.exactly_once.closures import ClosureLedger
from stratagem_psserver.exactly_once.ledger import SessionLedger
from stratagem_psserver.exactly_once.mutations import ClosureTurns, Mutations, ReplayedMutations
from stratagem_psserver.exactly_once.receiving import Receiver
from stratagem_psserver.exactly_once.sessions import Session, Succession
from stratagem_psserver.fast.plans import ReadPlanCache, StepPlans
from stratagem_psserver.limits import Budget, VariableMemoryLimit
from stratagem_psserver.log.changes import Changes
from stratagem_psserver.optimization.gradients import KeptGradients
from stratagem_psserver.optimization.optimizers import Optimizers
from stratagem_psserver.programs.graphs import GraphCache
from stratagem_psserver.publication import Publication
from stratagem_psserver.restoration import Announcements, Staging
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.synchronous.rounds import Absences, Rounds
from stratagem_psserver.tables.table_disk import TableDisk
from stratagem_psserver.variables.locks import Holding, LockUse, LockWait, VariableLocks
from stratagem_psserver.variables.snapshots import HeldSnapshot, HeldSnapshots, Snapshots
from stratagem_psserver.variables.store import Variable, VariableStore
from stratagem_psserver.waiting import LOCK, Attendance, AwaitedClient, Waiter, Waits, listed
from stratagem_rpc.channel import AUTO
from stratagem_rpc.serving.callers import end_of_credential, verify_caller
from stratagem_rpc.serving.figures import Figures
from stratagem_rpc.serving.handshake import Handshakes
from stratagem_rpc.serving.policy import Permissions
from stratagem_rpc.serving.rpc_boundary import RpcBoundary
from stratagem_rpc.socket_server.listener import OfferedSockets

_MOST = 100

# A cluster that goes on with fewer clients is not told of the others for ever.
_TOLD_SECONDS = 600.0


@dataclass(frozen=True)
class _Loss:
    session: Session
    why: str
    time: float


class LostClients:
    """The clients with a task whose sessions ended by themselves, until they come back."""

    def __init__(self) -> None:
        self._losses: dict[str, _Loss] = {}

    def add(self, session: Session, why: str, now: float) -> None:
        """Note that a session ended that its client did not close."""
        if not session.task.job:
            return
        self._losses[session.label] = _Loss(session, why, now)
        if len(self._losses) > _MOST:
            del self._losses[next(iter(self._losses))]

    def discard(self, session: Session) -> None:
        """Note that a client has a session again, or has none any more by its own wish."""
        self._losses.pop(session.label, None)

    def report(self, now: float) -> Iterator[LostClient]:
        for loss in self._losses.values():
            if now - loss.time <= _TOLD_SECONDS:
                yield LostClient(
                    role=loss.session.role,
                    task=loss.session.task,
                    why=loss.why,
                    seconds=now - loss.time,
                    doing=loss.session.doing,
                )


# The shared memory of clients has a budget of its own: the budget for requests divided by this.
_SHARED_PART = 4


class ServerState:
    """The pure parts of a server, and the locks and waits around them.

    Only the event loop adds, removes or looks up variables and sessions. Other threads only change
    tensors, while the event loop holds the locks of their variables.

    Args:
        settings: The settings of the server.
        environment: What it takes from its machine; by default what there is.
        handshakes: Those of the process, where this is not the first state that it has.
    """

    def __init__(
        self,
        settings: ServerSettings,
        environment: Environment | None = None,
        handshakes: Handshakes | None = None,
    ) -> None:
        self.settings = settings
        self.environment = environment or Environment()
        self.clock, self.compute = self.environment.clock, self.environment.compute
        random_bytes = self.environment.random_bytes
        self.handshakes = handshakes or Handshakes(settings, self.clock, random_bytes)
        self.figures = Figures()
        self.incarnation = random_bytes(SESSION_ID_BYTES)
        self.store = self._new_store()
        self.succession = Succession()
        self.ledger = self._new_ledger()
        self.cluster = KnownCluster(settings.label)
        self.attendance = Attendance()
        self.lost = LostClients()
        self.absences = Absences(settings.rejoin_seconds)
        self.rounds = Rounds(waits=settings.rejoin_seconds > 0)
        self.budget = Budget(settings.staged_bytes, self._reclaim, self.clock)
        shares = settings.transport == AUTO
        self.shared = Budget(settings.staged_bytes // _SHARED_PART if shares else 0)
        self.kept, self.clocks, self.inputs = KeptGradients(), Clocks(), InputOrders()
        self.data = DataLedgers()
        self.barriers, self.formations = Barriers(), Formations()
        self.optimizers = Optimizers(self.store)
        self.plans = StepPlans(self.store)
        self.read_plans = ReadPlanCache(self.store)
        self.graphs = GraphCache()
        self.waits = Waits(self.clock)
        self.locks = VariableLocks(partial(self._noted, "variable"))
        self.group_locks = VariableLocks(partial(self._noted, "decision on a step of"))
        self.gate = CheckpointGate()
        self.snapshots = Snapshots()
        self.held = HeldSnapshots(self.snapshots, self.store.memory_limit)
        self.publication = Publication(
            self.snapshots, self.waits, self.compute, self.clock, settings
        )
        self.staging = Staging(settings.label)
        self.closures = ClosureLedger(self.ledger.programs)
        self.changes = Changes()
        self.receiver = Receiver(self.budget, self.figures)
        self.mutations: Mutations | ReplayedMutations = self._new_mutations()
        self.resumed = False
        self.frame_sockets: OfferedSockets | None = None
        self.restored = Announcements()

    def _new_store(self) -> VariableStore:
        settings, disk = self.settings, None
        if settings.table_bytes is not None:
            disk = TableDisk(settings.table_bytes, settings.table_folder)
            # A request for few rows may read all of them from the disk.
            self.compute.inline_bytes = -1
        return VariableStore(VariableMemoryLimit(settings.variable_bytes), disk)

    def _new_ledger(self) -> SessionLedger:
        lease, reconnect = self.settings.lease_seconds, self.settings.reconnect_seconds
        claim = partial(verify_caller, settings=self.settings)
        return SessionLedger(lease, reconnect, self.succession, claim, self._require_reached)

    def _require_reached(self, shown: bytes) -> None:
        """Check that the server has all that it has told the client that shows this."""
        if reached := shown[end_of_credential(self.settings) :]:
            self.changes.history.require(reached, self.settings.label)

    def _new_mutations(self) -> Mutations:
        turns = ClosureTurns(self.closures, self.waits)
        return Mutations(self.ledger, turns, self.receiver, self.waits, self.gate, self.changes)

    def boundary(self) -> RpcBoundary:
        """Return what every call of the server crosses."""
        return RpcBoundary(self.handshakes, self.figures, self.known, self.permissions)

    @property
    def permissions(self) -> Permissions | None:
        """What its policy lets callers do; None if it has none."""
        policy = self.settings.policy
        return Permissions(policy, self._owners) if policy else None

    def _owners(self, name: str) -> Iterable[str]:
        """Return the variables under which a name counts, now or in a snapshot."""
        owner = self.store.owner(name)
        return {owner, *self.held.owners(name)} if self.held.is_used else (owner,)

    def _reclaim(self) -> None:
        self.receiver.uploads.clear()
        if self.rounds.reclaim():
            self.changes.reclaimed()

    def known(self, shown: bytes) -> Session | None:
        """Return the session that a request shows, whether or not its call may act for it."""
        return self.ledger.known(session_name(shown))

    def session(self, shown: bytes) -> Session:
        """Renew the lease of the session that the present call shows, and return the session.

        Raises:
            PermissionDeniedError: The call may not act for it.
            SessionLostError: No session with that id is open.
        """
        return self.ledger.authenticate(shown, self.clock())

    def finished(self, shown: bytes, step: int, report: bytes) -> Session:
        """Note what a client has finished, and return its session; raise as both do."""
        session = self.session(shown)
        self.note_finished(session, step, report)
        return session

    def note_finished(self, session: Session, step: int, report: bytes) -> None:
        """As `finished`, of a session whose lease is renewed already."""
        if self.gate.finish(session.client, session.label, step, report):
            self.changes.finished(session.id, step, report)
        self.waits.changed(STEPS)

    def open_session(
        self, session: Session, filtered: FilteredTasks | None = None, ps_tasks: int = 0
    ) -> Session:
        """Begin or resume a session, of which its client has said so much.

        Args:
            session: The session.
            filtered: From which tasks the server is hidden, if a chief has said it.
            ps_tasks: Over how many servers variables are placed; 0 unless a chief has said it.
        """
        self.ledger.open(session, self.clock())
        self.cluster.learn(filtered, ps_tasks)
        self.changes.opened(session, filtered, ps_tasks)
        self.lost.discard(session)
        self.barriers.session_opened(session.id)
        self.restored.session_opened(session.id)
        self.groups_changed(self.rounds.session_opened(session.id, session.label))
        return session

    def meet(self, request: BarrierRequest, session: Session) -> None:
        """Note that a task has arrived at a barrier; raise as `Barriers.arrive`."""
        name, generation = request.name, request.generation
        passing = self.barriers.arrive(
            name, generation, request.num_tasks, session.label, session.id
        )
        if passing:
            self.clocks_changed(self.clocks.passed(passing))
        elif not self.barriers.is_passed(name, generation, session.id):
            self.clocks_changed(self.clocks.at_barrier(session.id))
            # Those who wait for a step of this task wait in vain.
            self.groups_changed(self.rounds.groups)

    def close_session(self, session_id: bytes) -> None:
        """End a session as its client requests."""
        session = self.ledger.close(session_id)
        if session is not None:
            self.session_ended(session, f"{session.label} left", left=True)

    def end_session(self, session: Session, why: str) -> None:
        """End a session whose client has not asked for it; `why` is a clause for messages."""
        if self.ledger.close(session.id) is not None:
            self.session_ended(session, why)

    def end_leases(self) -> list[Session]:
        """End the sessions of clients that were silent for too long."""
        ended = self.ledger.expire(self.clock())
        for session in ended:
            self.session_ended(session, f"the lease of {session.label} ran out")
        if overdue := self.absences.overdue(self.rounds.absent(), self.clock()):
            self.give_up(overdue)
        return ended

    def give_up(self, tasks: Sequence[str]) -> None:
        """Let others wait no more for workers that are gone, until they come back."""
        self.changes.gave_up(tasks)
        self.rounds.give_up(tasks)
        self.groups_changed(self.rounds.groups)

    def session_ended(self, session: Session, why: str, left: bool = False) -> None:
        """Release what a session had, after the ledger has ended it."""
        self.changes.ended(session.id, why, left)
        if left:
            self.lost.discard(session)
        else:
            self.lost.add(session, why, self.clock())
        self.attendance.session_ended(session.id)
        self.barriers.session_ended(session.id)
        self.formations.session_ended(session.id)
        self.inputs.session_ended(session.id)
        self.gate.forget(session.client, bool(session.task.job))
        self.held.release(session.id)
        self.staging.forget(session.id)
        self.kept.session_ended(session.id)
        self.waits.changed(STEPS)
        self.groups_changed(self.rounds.session_ended(session.id, why, left))
        self.clocks_changed(self.clocks.session_ended(session.id, why))

    def task_of(self, worker: int) -> str:
        """Return the task of a worker by its number; a chief, if there is one, has number 0."""
        has_chief = any(session.task.job == "chief" for session in self.ledger.opened())
        if has_chief and not worker:
            return "/job:chief/task:0"
        return f"/job:worker/task:{worker - has_chief}"

    def is_applied(self, mark: StepMark, session: Session) -> bool | None:
        """Return whether the variables contain a step, as `Rounds.is_applied`.

        Raises:
            UnevenStepsError: Workers that the step lacks wait at a barrier.
        """
        applied = self.rounds.is_applied(mark, session.id)
        if applied is None:
            self.rounds.require_coming(mark, self.barriers.waiting(), self.task_of)
        return applied

    def step_waiter(self, session: Session, mark: StepMark) -> Waiter:
        """Return that a client waits for a synchronous step, for people."""
        awaited = partial(self.rounds.awaited_of, mark, self.task_of)
        return Waiter(session.label, f"step {mark.step} of {mark.group!r}", awaited)

    def explained(self, waiter: Waiter) -> str:
        """Return whom a request waits for and what was last heard of them, for a message."""
        now, known = self.clock(), {one.label: one for one in self.ledger.opened()}
        told = []
        for client, missing in waiter.awaited():
            session = known.get(client)
            seen = session.seen(now) if session else "which has no session"
            told.append(f"the {missing} of {client}, {seen}")
        return listed(told, "; ") or "nobody in particular"

    def groups_changed(self, groups: Iterable[str]) -> None:
        for group in groups:
            self.waits.changed(("group", group))

    def clocks_changed(self, groups: Iterable[str]) -> None:
        for group in groups:
            self.waits.changed(("clock", group))

    def variables(self, session_id: bytes, snapshot: bytes) -> VariableStore | HeldSnapshot:
        """Return the present variables, or those of a session's snapshot if one is named.

        Raises:
            FailedPreconditionError: The session has no such snapshot.
        """
        return self.held.get(session_id, snapshot) if snapshot else self.store

    def _noted(self, what: str, wait: LockWait) -> AbstractContextManager[None]:
        """Return a context in which a wait for a lock can be seen.

        Whoever holds a lock waits for nobody but this server, which is therefore named.
        """

        def awaited() -> Sequence[AwaitedClient]:
            client, work = wait.holder()
            return [AwaitedClient(self.settings.label, f"end of the {work} of {client}")]

        return self.waits.noted(LOCK, Waiter(wait.use.client, f"{what} {wait.name!r}", awaited))

    def deciding(self, group: str, use: LockUse) -> Holding:
        """Return a context in which nobody else decides on synchronous steps of a group."""
        return Holding(self.group_locks, lambda: [group], use)

    def locked(self, names: Iterable[str], use: LockUse) -> Holding:
        """Return a context that holds the locks of variables; a slot has the lock of its owner."""
        return Holding(self.locks, partial(self.store.owners, list(names)), use)

    def locked_owners(self, owners: Callable[[], list[str]], use: LockUse) -> Holding:
        """Return a context that holds the locks of these owners; see `VariableStore.owners`."""
        return Holding(self.locks, owners, use)

    def changing(self, names: Iterable[str], use: LockUse) -> AbstractAsyncContextManager[None]:
        """Return a context in which variables may be changed in place; it holds their locks."""
        return self.changing_owners(partial(self.store.owners, list(names)), use)

    def changing_owners(
        self, owners: Callable[[], list[str]], use: LockUse
    ) -> AbstractAsyncContextManager[None]:
        """Return the context of `changing` for these owners; see `VariableStore.owners`."""
        return _Changing(self, owners, use)


class _Changing:
    """The context in which variables are changed in place; see `ServerState.changing`."""

    def __init__(self, state: ServerState, owners: Callable[[], list[str]], use: LockUse) -> None:
        self._state, self._owners = state, owners
        self._locks = Holding(state.locks, owners, use)

    async def __aenter__(self) -> None:
        await self._locks.acquire()
        state = self._state
        if not state.snapshots.are_open:
            return
        try:
            if shared := state.snapshots.shared(self._touched()):
                nbytes = sum(variable.value.nbytes for variable in shared)
                separating = partial(state.snapshots.separate, shared)
                try:
                    await state.compute.run(separating, nbytes)
                finally:
                    state.store.changed()
        except BaseException:
            self._locks.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._state.store.memory_limit.is_limited:
                self._state.store.recount(self._owners())
                self._state.held.fit()
        finally:
            self._locks.release()

    def _touched(self) -> Iterator[Variable]:
        store = self._state.store
        for owner in self._owners():
            for name in (owner, *store.slots(owner)):
                if variable := store.find(name):
                    yield variable
