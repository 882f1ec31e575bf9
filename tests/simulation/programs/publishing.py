"""Versions are published while workers take steps, and readers follow them.

Each step writes to both servers: it adds to a sum, marks a dense value with its number, and writes
rows of a table that evicts others. What readers are told of a version is compared with what the
servers had when they published it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from stratagem._ps_client.requests import checkpoints, variables
from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.requests.variables import Writing
from stratagem_proto.division import PartRows, part_of_keys
from stratagem_proto.errors import StratagemError
from stratagem_proto.v1.variable_pb2 import (
    VARIABLE_KIND_MODEL,
    DynamicKeys,
    Initializer,
    TableSpec,
    VariableSpec,
)
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_ADD, ASSIGN_MODE_SET
from stratagem_proto.wire.tensors import spec_of
from stratagem_reader.cluster_source import ClusterSource
from stratagem_reader.source import Source
from stratagem_reader.sources import ServedSource
from stratagem_reader.store_source import StoreSource
from tests.simulation.cluster import Cluster, Process, together
from tests.simulation.programs.adding import spec
from tests.simulation.programs.digits import vector
from tests.simulation.programs.observing import WORKERS, Observing
from tests.simulation.readers.followers import (
    KEYS,
    TABLE,
    Reading,
    SimulatedReaderServer,
    interrupted_writes,
)
from tests.simulation.readers.followers import (
    Writing as Sinking,
)
from tests.simulation.readers.standing_in import readers_simulated
from tests.simulation.readers.truth import Truth
from tests.simulation.replicas.pair import SimulatedPair
from tests.simulation.servers import SimulatedServer
from tests.simulation.world import World

_WIDTH = 2
_ARRIVAL_SECONDS = 120.0
# After a failure, as publishers that publish now and then do.
_PAUSE_SECONDS = 3.0


class Publishing(Observing):
    """A moment is a version here, as a reader has it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._truth = Truth(world, self.num_servers)
        self._last, self._marks, self._is_over = 0, 0, False
        self._evict_after = self.chance.choice((0, 6, 12))
        self._max_rows = self.chance.choice((0, 8))
        self._readings: list[Reading] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._open = ExitStack()

    # What servers have.

    def creation(self, server: int) -> Request[Any]:
        sums, mark = torch.zeros(WORKERS, dtype=torch.int64), torch.zeros(3)
        specs = [spec(f"sum_{server}", sums), spec(f"mark_{server}", mark), self._table(server)]
        return variables.create(specs, [sums, mark])

    def _table(self, server: int) -> VariableSpec:
        keys = DynamicKeys(
            part=server,
            parts=self.num_servers,
            evict_after_writes=self._evict_after,
            max_rows=self._max_rows,
        )
        return VariableSpec(
            name=f"{TABLE}/part_{server}",
            tensor=spec_of(torch.zeros(0, _WIDTH)),
            kind=VARIABLE_KIND_MODEL,
            initializer=Initializer(constant=0.0),
            table=TableSpec(dynamic=keys),
            partition=PartRows(0, 0).partition((0, _WIDTH)),
        )

    def writings(self, server: int, worker: int, digit: int) -> list[Writing]:
        self._marks += 1
        number = float(self._marks)
        drawn = torch.tensor(self.chance.sample(KEYS, self.chance.randint(1, 6)))
        keys = drawn[part_of_keys(drawn, self.num_servers) == server]
        found = [
            Writing(f"sum_{server}", ASSIGN_MODE_ADD, vector(WORKERS, worker, digit)),
            Writing(f"mark_{server}", ASSIGN_MODE_SET, torch.full((3,), number)),
        ]
        if len(keys):
            rows = torch.stack([torch.full((len(keys),), number), keys.float()], 1)
            found.append(Writing(f"{TABLE}/part_{server}", ASSIGN_MODE_SET, rows, keys))
        return found

    # Who follows.

    async def prepare(self, cluster: Cluster) -> None:
        self._open.enter_context(self._truth.noted())
        self._open.enter_context(interrupted_writes(self.world))
        self._open.enter_context(_quiet(self.world))
        self._clock = self._open.enter_context(
            readers_simulated(cluster.network, partial(self._places, cluster))
        )
        await super().prepare(cluster)
        addresses = [_address(server) for server in cluster.servers]
        of_cluster = partial(ClusterSource, addresses, "")
        self._served = SimulatedReaderServer(cluster, self._truth, of_cluster)
        self._follow(cluster, "cluster", of_cluster)
        if self.chance.random() < 0.5:
            self._begin(self._served.live())
            name = self._served.name
            sources: list[Callable[[], Source]] = [
                partial(ClusterSource, [name], ""),
                partial(ServedSource, f"serve://{name}", ""),
            ]
            self._follow(cluster, "served", self.chance.choice(sources))
        if self.chance.random() < 0.4:
            root = Path(self._open.enter_context(TemporaryDirectory(prefix="versions"))) / "run"
            self._begin(Sinking(cluster, root, of_cluster).live())
            self._follow(cluster, "store", partial(StoreSource, root))

    def _follow(self, cluster: Cluster, name: str, source: Callable[[], Source]) -> None:
        reading = Reading(cluster, self._truth, f"reader:{name}", source)
        self._readings.append(reading)
        self._begin(reading.live())

    def _begin(self, life: Any) -> None:
        self._tasks.append(self.world.loop.create_task(life))

    def _places(self, cluster: Cluster) -> dict[str, Any]:
        places: dict[str, Any] = {self._served.name: self._served}
        for server in cluster.servers:
            replicas = server.replicas if isinstance(server, SimulatedPair) else [server]
            places |= {replica.name: replica for replica in replicas}
        return places

    # Publishing.

    async def _observe_all(self, cluster: Cluster) -> None:
        """Publish in one process after the other, in some runs in two of them at once."""
        publishers = self.chance.choice((1, 1, 2))
        await asyncio.gather(
            *(self._publish_all(cluster, f"chief:{number}") for number in range(publishers))
        )

    async def _publish_all(self, cluster: Cluster, name: str) -> None:
        while not self._is_over:
            await cluster.run(name, self._publish_on)
            await asyncio.sleep(self.chance.random() * 5.0)

    async def _publish_on(self, publisher: Process) -> None:
        while not self._is_over:
            await asyncio.sleep(self.chance.choice((0.1, 1.0, 4.0)))
            await publisher.pauses.over()
            try:
                await self._publish(publisher)
            except StratagemError:
                await asyncio.sleep(self.chance.random() * _PAUSE_SECONDS)

    async def _publish(self, publisher: Process) -> int:
        """Publish a version; return its number, 0 if there was no moment for it."""
        cut = self.chance.randbytes(16)
        try:
            with publisher.steps.step_scope():
                own = {publisher.client: publisher.steps.current}
                answers = await self.held(publisher, cut, own)
                if answers is None:
                    return 0
                now = self._clock.milliseconds()
                version = max(now, *(each.published + 1 for each in answers))
                publisher.note(f"publishes version {version}")
                requests = [
                    checkpoints.publish(cut, version, now, self._own(server, version))
                    for server in range(self.num_servers)
                ]
                await together(
                    publisher.call(server, request) for server, request in enumerate(requests)
                )
            self._last = max(self._last, version)
            return version
        except StratagemError:
            with suppress(StratagemError):
                await publisher.on_all(partial(checkpoints.release_steps, cut))
            raise

    def _own(self, server: int, version: int) -> dict[str, torch.Tensor]:
        """Return what the publisher has itself, which goes with the first server's part."""
        return {} if server else {"version": torch.tensor([version])}

    # What has come of it.

    async def run(self, cluster: Cluster) -> None:
        publishing = self.world.loop.create_task(self._observe_all(cluster))
        await self.work(cluster)
        self._is_over = True
        await publishing

    async def judge(self, cluster: Cluster) -> None:
        try:
            await self._judge(cluster)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            self._open.close()
        # Servers hear of the end of their calls.
        await asyncio.sleep(1.0)

    async def _judge(self, cluster: Cluster) -> None:
        version = await self._publish_last(cluster)
        until = self.world.loop.time() + _ARRIVAL_SECONDS
        while self.world.loop.time() < until and any(self._late(version)):
            await asyncio.sleep(0.5)
        for name in self._late(version):
            self.world.require(False, f"{name} does not come to version {version} in fair weather")
        for server in cluster.servers:
            number = server.state.publication.version
            newest = max([self._last, *self._truth.read])
            what = f"{server.name} is at version {number}, and {newest} was published or read"
            self.world.require(number >= newest, what)
        self.moments = [self._moment(number) for number in sorted(self._truth.read)]
        self.judge_moments()
        self._check_increments(cluster)

    async def _publish_last(self, cluster: Cluster) -> int:
        version = 0

        async def publish(publisher: Process) -> None:
            nonlocal version
            while not version:
                try:
                    version = await self._publish(publisher)
                except StratagemError as error:
                    # Another publisher may not have ended yet.
                    publisher.note(f"may not publish yet: {error}")
                await asyncio.sleep(2.0)

        await asyncio.wait_for(cluster.once("chief:9", publish), _ARRIVAL_SECONDS)
        return version

    def _late(self, version: int) -> Iterator[str]:
        for reading in self._readings:
            follower = reading.follower
            if follower is None or follower.replica.number < version:
                why = follower.source_error if follower is not None else None
                yield f"{reading._name} ({why})"

    def _moment(self, version: int) -> list[list[int]]:
        tensors = [self._truth.tensor(version, f"sum_{n}") for n in range(self.num_servers)]
        return [each.tolist() for each in tensors if each is not None]

    def _check_increments(self, cluster: Cluster) -> None:
        """Check that who has a version comes to later ones by increments, if servers can know."""
        if any(not isinstance(each, SimulatedServer) for each in cluster.servers):
            return
        if not self.world.faults["restart"]:
            for reading in self._readings:
                if reading._name == "reader:cluster":
                    what = f"{reading._name} has read {reading.wholes} versions whole again"
                    self.world.require(not reading.wholes, what)


def _address(server: Any) -> str:
    if isinstance(server, SimulatedPair):
        return ",".join(replica.name for replica in server.replicas)
    return str(server.name)


class _Quiet(logging.Handler):
    """Takes what readers log; a line that tells of an error is a violation."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Note a violation."""
        failure = record.exc_info[1] if record.exc_info else ""
        self._world.require(False, f"a reader logs an error: {record.msg} {failure!r}")


@contextmanager
def _quiet(world: World) -> Iterator[None]:
    log, handler = logging.getLogger("stratagem"), _Quiet(world)
    propagates, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagates
