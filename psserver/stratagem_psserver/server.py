"""A parameter server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import grpc

from stratagem_proto.errors import StratagemError, UnavailableError, VariableNotFoundError
from stratagem_proto.protocol import session_name
from stratagem_psserver.checkpoints import resume
from stratagem_psserver.environment import Environment
from stratagem_psserver.exactly_once.mutations import Mutations
from stratagem_psserver.limits import Reservation
from stratagem_psserver.moves import Departure, OtherServers, ServedTasks, servers_handler
from stratagem_psserver.persistence.persistence import PeriodicImages, Persistence
from stratagem_psserver.replicated_service import ReplicatedService
from stratagem_psserver.replication.calls import FOLLOWING, GrpcPeers
from stratagem_psserver.replication.registers import arbiter_of
from stratagem_psserver.service import SERVICE, Service
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState
from stratagem_psserver.tables.table import Table
from stratagem_psserver.variables.locks import LockUse
from stratagem_rpc.server_log import LOG
from stratagem_rpc.serving.server import FRAMES_PART, RpcServer
from stratagem_rpc.serving.status import StatusService
from stratagem_rpc.serving.task_servers import TaskServer, TaskSettings
from stratagem_rpc.socket_server.listener import OfferedSockets


class IdleRowEviction:
    """Tells tables how much time has passed, and the log that they were told.

    Rows that go are no part of a client's request, so the log has a record of its own for them:
    whoever replays it finds the same rows idle.
    """

    def __init__(self) -> None:
        # When each table was told last, by the clock of its server.
        self._told: WeakKeyDictionary[Table, float] = WeakKeyDictionary()
        self._telling: asyncio.Task[None] | None = None

    def tend(self, state: ServerState) -> None:
        """Begin to tell the tables of a server for which it is time; called now and then."""
        now = state.clock()
        due = []
        for variable in state.store.variables():
            if variable.arena is None or variable.spec.slot_of:
                continue
            table = variable.arena.table
            since = now - self._told.setdefault(table, now)
            if table.idle_time.limit and since * 1000 >= table.idle_time.interval:
                due.append(variable.name)
        if due and (self._telling is None or self._telling.done()):
            self._telling = asyncio.ensure_future(self._tell(state, due))

    async def _tell(self, state: ServerState, names: list[str]) -> None:
        for name in names:
            try:
                await self._pass_time(state, name)
            except VariableNotFoundError:
                continue
            except StratagemError as error:
                LOG.warning("idle rows stay for now", table=name, error=error.message)

    async def _pass_time(self, state: ServerState, name: str) -> None:
        await state.changes.caught_up()
        async with state.changing([name], LockUse(state.settings.label, "eviction")):
            arena, mutations = state.store.get(name).arena, state.mutations
            # What is paused is in the midst of an image; there is time later.
            if arena is None or not isinstance(mutations, Mutations) or mutations.is_paused:
                return
            table, now = arena.table, state.clock()
            milliseconds = int((now - self._told[table]) * 1000)
            with mutations.beside():
                await state.compute.run(lambda: table.pass_time(milliseconds), table.nbytes)
                state.changes.passed(name, milliseconds)
            self._told[table] = now

    async def close(self) -> None:
        if self._telling is not None:
            await self._telling


# The number of checks for ended leases within the shortest time in which a session can end, and of
# checks for unused memory within a lease.
_CHECKS = 4

# How long an operation may go on after the time for draining.
_LAST_SECONDS = 0.5


class ParameterServer(RpcServer):
    """One parameter server, in this process.

    Its `start` raises the errors of `RpcServer.start`, and `DataLossError` if the checkpoint to
    restore is damaged.

    Args:
        settings: Its settings.
        environment: What it takes from its machine; by default what there is.
        served: The tasks of the server, where this is what serves one that has moved there; by
            default this is the server.
    """

    service = SERVICE

    def __init__(
        self,
        settings: ServerSettings,
        environment: Environment | None = None,
        served: ServedTasks | None = None,
    ) -> None:
        super().__init__(settings)
        self.settings, self._environment = settings, environment
        self._persistence: Persistence | PeriodicImages | None = None
        self._replicated: ReplicatedService | None = None
        self._is_home, self._served = served is None, served
        self._evictions = IdleRowEviction()
        if settings.is_movable and served is None:
            self._served = ServedTasks(
                self, settings, lambda settings: ParameterServer(settings, served=self._served)
            )

    @property
    def replicated(self) -> ReplicatedService:
        """Answers clients while the task is here; only of a task that may be elsewhere."""
        assert self._replicated is not None
        return self._replicated

    def start(self) -> None:
        try:
            super().start()
        except BaseException:
            for kept in (self._persistence, self._replicated):
                if kept is not None:
                    kept.release()
            raise

    def _handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        state = ServerState(self.settings, self._environment)
        if self.settings.arbiter:
            arbiter, peers = arbiter_of(self.settings), GrpcPeers(self.settings)
            self._replicated = ReplicatedService(state, arbiter, peers, self._forget_handlers)
            if not self._replicated.has_state:
                self._resume(state)
            if self._served is None:
                return self._replicated.handlers
            # Those of calls by which tasks are found and moved.
            moving = servers_handler(self._served, state.boundary())
            return (*self._replicated.handlers, moving)
        match self.settings.durability:
            case "log":
                self._persistence = Persistence(state)
            case "snapshot":
                self._persistence = PeriodicImages(state)
        if not (self._persistence and self._persistence.has_state):
            self._resume(state)
        self._sole = Service(state)
        return (*self._sole.handlers_for_all, *self._sole.handlers)

    @property
    def _service(self) -> Service:
        return self._replicated.service if self._replicated else self._sole

    @property
    def _state(self) -> ServerState:
        return self._service.state

    def _status_service(self) -> StatusService:
        return self._service.status

    def _resume(self, state: ServerState) -> None:
        if path := self.settings.restore:
            what = "restored" if resume(state, path) else "no checkpoint there yet"
            self._log.info(what, path=path)

    def _listens(self, sockets: OfferedSockets) -> None:
        self._state.frame_sockets = sockets

    def _share(self, nbytes: int, session_id: bytes) -> Reservation:
        session = self._state.known(session_id)
        client = session.label if session else "a session that is not open"
        return self._state.shared.reserve(nbytes, "a segment of shared memory", client)

    def _client_of(self, session_id: bytes) -> str | None:
        session = self._state.ledger.opened_as(session_name(session_id))
        return session.label if session else None

    @property
    def _frame_bytes(self) -> int:
        return self.settings.staged_bytes // FRAMES_PART

    async def _prepare(self) -> None:
        if self._replicated is not None:
            await self._replicated.recover()
        if self._persistence is not None:
            await self._persistence.recover()

    async def _begin(self) -> None:
        settings = self.settings
        shortest = min(settings.lease_seconds, settings.reconnect_seconds)
        self._recurring: list[asyncio.Task[Any]] = [
            asyncio.create_task(_repeat(self._end_leases, shortest)),
            asyncio.create_task(_repeat(self._trim, settings.lease_seconds)),
        ]
        if self._replicated is not None:
            self._replicated.begin(_advertised(settings, self.address))
            self._health.set_serving(FOLLOWING, False)
        if self._home is not None:
            self._recurring.append(asyncio.create_task(self._home.recover()))

    def announce_stop(self) -> None:
        super().announce_stop()
        if self._served is not None:
            self._served.is_draining = True

    def _trim(self) -> None:
        self._state.receiver.uploads.trim()

    def _end_leases(self) -> None:
        for session in self._state.end_leases():
            told = "a client was silent for longer than its lease, and its session has ended"
            self._log.warning(told, client=session.label)
        for kept in (self._persistence, self._replicated):
            if kept is not None:
                kept.tend()
        self._state.publication.tend(self._state.store.memory_limit.left)
        if self._replicated is None or self._replicated.is_serving:
            self._evictions.tend(self._state)
        if self._replicated is not None:
            self._health.set_serving(FOLLOWING, self._replicated.has_place)

    async def _refuse(self, seconds: float) -> None:
        await self._hand_on(seconds)
        self._state.attendance.close()
        self._state.waits.close(
            UnavailableError(f"{self.settings.label} is shutting down; repeat the call")
        )

    async def _hand_on(self, seconds: float) -> None:
        """Give what it has to others, in the first way in which that is possible."""
        await self._evictions.close()
        if self._home is not None:
            if seconds > 0.0:
                others = OtherServers(self.settings)
                await Departure(self._home, others, seconds).give_all()
            stop = partial(self._home.stop_others, seconds)
            await asyncio.get_running_loop().run_in_executor(None, stop)
        # Its backup, or another server, may serve now in its place. Else an image is taken of it at
        # the end, when no calls are left.
        if self._replicated is not None and await self._replicated.leave():
            return
        if self.settings.durability == "none":
            self._log.info("ends with what it has", remedy="give it a backup, or a durability")

    async def _end(self) -> None:
        for task in self._recurring:
            task.cancel()
        await asyncio.wait(self._recurring)
        state, saves = self._state, self._service.saves
        if not await state.compute.is_done(_LAST_SECONDS):
            return await self._cut_off()
        if self._replicated is not None:
            await self._replicated.close()
        if self._home is not None:
            await self._home.close()
        await saves.close()
        if self._persistence is not None:
            await self._persistence.close()
        # A thread may still load an image, and others of the process need the loop.
        await asyncio.get_running_loop().run_in_executor(None, state.compute.close)

    async def _cut_off(self) -> None:
        """End in the midst of an operation that nothing can interrupt.

        What was acknowledged is on disk, or with the backup, if the durability says so; the state
        in memory is that of no moment, and no image is taken of it.
        """
        self.leaves_work = True
        self._log.warning(
            "an operation goes on after the last second of draining, and is cut off",
            remedy="give --drain-seconds more, or update functions smaller operations",
        )
        ending = [each.close() for each in (self._replicated, self._home) if each is not None]
        if ending:
            await asyncio.wait(map(asyncio.ensure_future, ending), timeout=_LAST_SECONDS)
        for kept in (self._persistence, self._replicated):
            if kept is not None:
                kept.release()
        self._state.compute.close(wait=False)

    @property
    def _home(self) -> ServedTasks | None:
        """The tasks of the server, unless this is what serves one that has moved there."""
        return self._served if self._is_home else None


def _advertised(settings: ServerSettings, address: str) -> str:
    """Return the "host:port" at which others reach a server that listens at an address."""
    if not settings.advertise:
        return address
    if settings.server_number == settings.task:
        return settings.advertise
    # A task that has moved here has a port of its own.
    return f"{settings.advertise.rpartition(':')[0]}:{address.rpartition(':')[2]}"


async def _repeat(action: Callable[[], None], seconds: float) -> NoReturn:
    while True:
        await asyncio.sleep(seconds / _CHECKS)
        action()


def task_server(settings: TaskSettings) -> TaskServer:
    """Return a server of the job ps, which has not started.

    Raises:
        InvalidArgumentError: The address is not valid, or other machines could reach it without
            `insecure` or without a token.
    """
    return ParameterServer(
        ServerSettings(
            bind=settings.bind,
            job=settings.job,
            task=settings.task,
            token=settings.token,
            insecure=settings.insecure,
        )
    )
