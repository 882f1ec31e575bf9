"""The servers of a simulation, and the processes that are their clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol, TypeAlias

from stratagem._ps_client.checkpoint_steps import CheckpointSteps
from stratagem._ps_client.requests.request import Request, Result
from stratagem._ps_client.session import Identity, farewell
from stratagem_proto.errors import InternalError, StratagemError
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF
from tests.simulation.connections import Pauses, SimulatedConnection
from tests.simulation.disk import Disk
from tests.simulation.network import Network
from tests.simulation.replicas.pair import MOVING_STORMS, REPLICA_STORMS, SimulatedPair
from tests.simulation.replicas.replica_run import own
from tests.simulation.route import ReplicaRoute, Route, SoleRoute
from tests.simulation.server_run import beside
from tests.simulation.servers import SimulatedServer
from tests.simulation.world import RESTART, World

_BEAT_SECONDS = 3.0

Server: TypeAlias = SimulatedServer | SimulatedPair
"""A task of the job ps."""


class Victim(Protocol):
    """A process that storms may come over.

    Attributes:
        name: Its name in the trace and in the network.
        pauses: When none of its code runs.
    """

    name: str
    pauses: Pauses

    def crash(self) -> None:
        """End all at once."""


def _route(network: Network, client: str, server: Server) -> Route:
    if isinstance(server, SimulatedPair):
        return ReplicaRoute(network, client, server.replicas)
    return SoleRoute(network, client, server)


class Process:
    """One run of a client's process.

    Attributes:
        name: Its name in the trace, the same for all runs of a task.
        client: Names it in the steps that servers know of.
        steps: Its steps, by which servers keep what belongs together.
        pauses: When none of its code runs.
        last: By server, the version and the value of what it has read last.
    """

    def __init__(self, network: Network, servers: Sequence[Server], task: str) -> None:
        world = self._world = network.world
        job, _, index = task.partition(":")
        client = world.chance.randbytes(16)
        identity = Identity(ROLE_CHIEF, job, int(index), client=client, process=client)
        self.name, self.client = task, client
        self.steps, self.pauses = CheckpointSteps(), Pauses(world)
        self._connections = [
            SimulatedConnection(
                world, _route(network, task, server), number, identity, self.steps, self.pauses
            )
            for number, server in enumerate(servers)
        ]
        self.last: dict[int, tuple[int, list[int]]] = {}
        self._tasks: list[asyncio.Task[Any]] = [world.loop.create_task(self._beat())]

    async def call(self, server: int, request: Request[Result]) -> Result:
        """Send a request to a server and wait for its result; an error has to be typed."""
        return await self._typed(request.method, self._connections[server].call(request))

    async def pipeline(self, server: int, request: Request[Result]) -> Awaitable[Result]:
        """Send a mutation; await what is returned for its result."""
        answer = await self._connections[server].pipeline(request)
        task = self._world.loop.create_task(self._typed(request.method, answer))
        self._tasks += [answer, task]
        # An error is told whether or not the program still asks for it.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def on_all(self, make: Callable[[], Request[Result]]) -> list[Result]:
        """Send a request to each server at once; raise an error of one of them."""
        return await together(self.call(server, make()) for server in range(len(self._connections)))

    async def tell_last_step(self) -> None:
        """Tell a server which step was the last, as the client's heartbeat does soon after it."""
        with suppress(StratagemError):
            await self._connections[0].beat()

    async def _typed(self, method: str, answer: Awaitable[Result]) -> Result:
        try:
            return await answer
        except StratagemError as error:
            what = f"{method} raises {type(error).__name__}: {error.message}"
            self._world.note(self.name, what)
            self._world.require(not isinstance(error, InternalError), f"{self.name}: {what}")
            raise
        except Exception as error:
            self._world.require(False, f"{method} of {self.name} raises {error!r}")
            raise

    def run_of(self, server: int) -> bytes:
        """Return the run of a server that the process has a session with."""
        return self._connections[server].run

    @property
    def losses(self) -> int:
        """How often servers have ended its sessions."""
        return sum(connection.losses for connection in self._connections)

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        self._world.note(self.name, what)

    async def idle(self) -> None:
        """Compute something for a moment, or for longer."""
        await asyncio.sleep(self._world.chance.choice((0.0, 0.01, 0.2, 2.0)))
        await self.pauses.over()

    def begin(self, life: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run the program of the process."""
        task = self._world.loop.create_task(life)
        self._tasks.append(task)
        return task

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            await self.pauses.over()
            beats = [connection.beat() for connection in self._connections]
            for outcome in await asyncio.gather(*beats, return_exceptions=True):
                if isinstance(outcome, Exception) and not isinstance(outcome, StratagemError):
                    self._world.require(False, f"a heartbeat of {self.name} raises {outcome!r}")

    async def leave(self) -> None:
        """Close all sessions, as a program does that ends."""
        for server, connection in enumerate(self._connections):
            if connection.session is not None:
                with suppress(StratagemError):
                    await self.call(server, farewell(connection.session))
        self.crash()

    def crash(self) -> None:
        """End all at once."""
        for task in self._tasks:
            task.cancel()
        for connection in self._connections:
            connection.close()


async def together(calls: Iterable[Awaitable[Result]]) -> list[Result]:
    """Return what calls return once all of them are over; raise an error of one of them."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]


Life = Callable[[Process], Coroutine[Any, Any, None]]


class Cluster:
    """All servers, and the processes that run now.

    Attributes:
        world: The run that it is part of.
        servers: The servers.
        logs: Whether they keep logs.
        network: Carries what is sent.
    """

    def __init__(
        self,
        world: World,
        num_servers: int,
        disk: Disk | None = None,
        replicated: bool = False,
        moves: bool = False,
    ) -> None:
        self.world, self.logs = world, disk is not None
        world.loop.beside = partial(beside, world)
        self.network = Network(world)
        self._pairs: list[SimulatedPair] = []
        self.servers: Sequence[Server]
        if replicated or moves:
            world.loop.begins = own
            self._pairs = [
                SimulatedPair(self.network, task, disk, moves) for task in range(num_servers)
            ]
            self.servers = self._pairs
        else:
            self.servers = [
                SimulatedServer(world, f"ps:{task}", task, disk) for task in range(num_servers)
            ]
        self._processes: dict[Victim, None] = {}

    def process(self, task: str) -> Process:
        """Start a process of a task, which runs no program yet."""
        return Process(self.network, self.servers, task)

    async def once(self, task: str, life: Life) -> None:
        """Run a program in a process of its own; raise what it raises."""
        process = self.process(task)
        try:
            await life(process)
        finally:
            await process.leave()

    async def run(self, task: str, life: Life) -> bool:
        """Run a program in a process that faults may strike.

        Args:
            task: The task of the process.
            life: The program. If it fails, the process closes its sessions all the same.

        Returns:
            Whether it came to its end.
        """
        process = self.process(task)
        running = process.begin(life(process))
        with self.in_the_open(process):
            # Unlike `await running`, this tells a crash from the end of the simulation.
            await asyncio.wait([running])
        if running.cancelled():
            self.world.note(task, "crashes")
            return False
        error = running.exception()
        await process.leave()
        if error is not None and not isinstance(error, StratagemError):
            raise error
        return error is None

    @contextmanager
    def in_the_open(self, process: Victim) -> Iterator[None]:
        """Have storms come over a process, as long as the context lasts."""
        self._processes[process] = None
        try:
            yield
        finally:
            self._processes.pop(process, None)

    async def run_until_done(self, task: str, life: Life) -> None:
        """Run a program as `run`, in new processes until it has come to its end once."""
        while not await self.run(task, life):
            await asyncio.sleep(self.world.chance.choice((0.5, 2.0, 6.0, 15.0)))

    async def storm(self) -> None:
        """Have partitions, pauses and crashes come over processes until the world is calm."""
        weather, chance = self.world.weather, self.world.chance
        rate = sum(weather.storms.values()) / 60.0
        while rate and not self.world.is_calm:
            await asyncio.sleep(chance.expovariate(rate))
            (kind,) = chance.choices(list(weather.storms), list(weather.storms.values()))
            process = chance.choice(list(self._processes)) if self._processes else None
            if process is not None and self.world.strikes(kind, 1.0):
                self.world.note(process.name, f"storm: {kind}")
                self._strike(kind, process)

    def _strike(self, kind: str, process: Victim) -> None:
        chance = self.world.chance
        seconds = chance.choice((0.5, 3.0, 8.0, 15.0)) * (0.5 + chance.random())
        if kind == "partition":
            there, back = chance.choice(((True, True), (True, False), (False, True)))
            server = chance.choice(self.servers)
            place = chance.choice(server.replicas) if isinstance(server, SimulatedPair) else server
            self.network.part(process.name, place.name, there, back, seconds)
        elif kind == "pause":
            process.pauses.pause(seconds)
        elif kind in (*REPLICA_STORMS, *MOVING_STORMS):
            chance.choice(self._pairs).strike(kind, seconds)
        elif kind == "restart":
            self._restart(chance.choice(self.servers))
        else:
            process.crash()

    def check_rest(self) -> None:
        """Check that servers without clients have nothing under way."""
        for server in self.servers:
            state = server.state
            waiting = sum(each.waiting for each in state.waits.report())
            self.world.require(not waiting, f"{waiting} requests wait on {server.name} for ever")
            applying = state.gate.applying
            self.world.require(not applying, f"{server.name} counts {applying} requests for ever")

    async def settle(self) -> None:
        """Wait until each task has all its replicas."""
        for pair in self._pairs:
            await pair.settle()

    async def check_replicas(self) -> None:
        """Check that the replicas of each task are equal."""
        for pair in self._pairs:
            await pair.check_equal()

    def restart_at_times(self, server: int) -> bool:
        """End a server at a moment that a program has found, in the weather for that."""
        likely = 0.5 if self.world.weather.storms.get(RESTART) else 0.0
        ends = self.world.strikes(RESTART, likely)
        if ends:
            self._restart(self.servers[server])
        return ends

    def _restart(self, server: Server) -> None:
        if isinstance(server, SimulatedServer) and server.is_up:
            server.stop()
            self.world.loop.call_later(self.world.chance.random() * 5.0, server.start)
