"""Processes that follow what is published, and check what they read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import grpc
import torch

from stratagem_proto.errors import InternalError, StratagemError, VersionExpiredError
from stratagem_reader.reader import Follower
from stratagem_reader.replica import Prepared
from stratagem_reader.server import ReaderServer, ReaderServerSettings
from stratagem_reader.sink import StoreSink
from stratagem_reader.source import Source
from stratagem_storage.stores import local
from tests.simulation.cluster import Cluster
from tests.simulation.readers.blocking import BlockingProcess, is_blocking, sleep
from tests.simulation.readers.truth import Truth
from tests.simulation.server_run import ServedCall, answered
from tests.simulation.world import World

TABLE, KEYS = "rows", range(40)

_LONGEST_RESTART_SECONDS = 5.0


class Watched(Follower):
    """A follower each of whose versions is compared with what the servers had.

    Args:
        source: What it follows.
        truth: What the servers had.
        process: Its process.
    """

    def __init__(self, source: Source, truth: Truth, process: BlockingProcess) -> None:
        self._truth, self._process = truth, process
        self.wholes: list[int] = []
        super().__init__(source, timeout=0.0, lease=process.world.chance.choice((0.2, 1.0, 10.0)))

    def _taken(self, prepared: Prepared) -> None:
        world, name, number = self._process.world, self._process.name, prepared.version.number
        world.note(name, f"takes {'all of ' if prepared.is_whole else ''}version {number}")
        if prepared.is_whole:
            self.wholes.append(number)
        has_rows = getattr(self.source, "rows", None) is None
        self._truth.check_replica(name, self.replica, has_rows)


class Reading:
    """Somebody who pins versions and reads them, in one process after the other.

    Args:
        cluster: The cluster.
        truth: What the servers had.
        name: The name of the processes.
        source: Makes what they follow.

    Attributes:
        follower: That of the present process; None before it has one.
        is_over: Set to have it end.
    """

    def __init__(
        self, cluster: Cluster, truth: Truth, name: str, source: Callable[[], Source]
    ) -> None:
        self._cluster, self._world = cluster, cluster.world
        self._truth, self._name, self._source = truth, name, source
        self.follower: Watched | None = None
        # How often it came to a version whole though it had one.
        self.wholes = 0

    async def live(self) -> None:
        """Read in processes that storms may come over, until that is cancelled."""
        await alive(self._cluster, self._name, self._read_on)

    def _read_on(self, process: BlockingProcess) -> None:
        self.follower = None
        follower = self.follower = Watched(self._source(), self._truth, process)
        last = 0
        while True:
            sleep(self._world.chance.choice((0.05, 0.5, 2.0)))
            before, last = last, follower.version
            what = f"{self._name} goes back from version {before} to {last}"
            self._world.require(last >= before, what)
            self.wholes = max(self.wholes, len(follower.wholes) - 1)
            if last:
                self._read(follower)

    def _read(self, follower: Watched) -> None:
        chance, name = self._world.chance, self._name
        try:
            with follower.pin() as version:
                for _ in range(chance.randint(1, 3)):
                    keys = chance.sample(KEYS, 12)
                    rows = follower.lookup(TABLE, torch.tensor(keys), default=-1.0)
                    self._truth.check_rows(name, version, TABLE, keys, rows)
                    variable = chance.choice(("sum_0", "sum_1", "mark_0", "mark_1"))
                    value = follower.value(variable)
                    self._truth.check_value(name, version, variable, value)
                    sleep(chance.choice((0.0, 0.01, 0.3)))
        except VersionExpiredError:
            self._world.note(name, "was too slow for its lease")
        except InternalError as error:
            self._world.require(False, f"{name} gets {error!r}")
        except StratagemError as error:
            self._world.note(name, f"cannot read: {error}")


async def alive(cluster: Cluster, name: str, life: Callable[[BlockingProcess], None]) -> None:
    """Run a program that blocks in one process after the other, which storms may come over."""
    chance = cluster.world.chance
    while True:
        process = BlockingProcess(cluster.world, name)
        try:
            with cluster.in_the_open(process):
                over = process.begin(partial(life, process)).over
                await asyncio.wait([over])
            why = "" if over.cancelled() else f", since it fails: {over.exception()!r}"
            cluster.world.note(name, f"crashes{why}")
            cluster.world.require(not why, f"{name} ends{why}")
        finally:
            process.crash()
        await asyncio.sleep(chance.random() * _LONGEST_RESTART_SECONDS)


class _Run:
    """One run of a reader server's process."""

    def __init__(self, world: World, process: BlockingProcess) -> None:
        self._world, self.process = world, process
        self.services: tuple[grpc.GenericRpcHandler, ...] = ()

    def serve(
        self, path: str, messages: Any, segment: object, call: ServedCall | None = None
    ) -> asyncio.Task[list[bytes]]:
        """Begin to answer a call."""
        work = answered(self.services, path, messages, call or ServedCall(None))
        return self._world.loop.create_task(work)


class SimulatedReaderServer:
    """A reader server, in one process after the other; a place for the network.

    Args:
        cluster: The cluster.
        truth: What the servers had.
        source: Makes what it follows.
    """

    name, copies = "serve:1", False

    def __init__(self, cluster: Cluster, truth: Truth, source: Callable[[], Source]) -> None:
        self._cluster, self._world = cluster, cluster.world
        self._truth, self._source = truth, source
        self.run = _Run(self._world, BlockingProcess(self._world, self.name))
        self._looking: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """Whether it answers calls."""
        return bool(self.run.services) and not self.run.process.has_ended

    async def live(self) -> None:
        """Serve in processes that storms may come over, until that is cancelled."""
        try:
            await alive(self._cluster, self.name, self._serve)
        finally:
            self._stop_looking()

    def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    def _serve(self, process: BlockingProcess) -> None:
        run = self.run = _Run(self._world, process)
        settings = ReaderServerSettings(hold_seconds=self._world.chance.choice((0.0, 1.0)))
        server = _Server(settings, self._source(), self._truth, process)
        services = tuple(server._handlers())
        self._stop_looking()
        self._looking = self._world.loop.create_task(server._begin())
        run.services = services
        last = 0
        while True:
            sleep(0.5)
            before, last = last, server.follower.version
            self._world.require(last >= before, f"{self.name} goes back from {before} to {last}")


class _Server(ReaderServer):
    """A reader server each of whose versions is compared with what the servers had."""

    def __init__(
        self,
        settings: ReaderServerSettings,
        source: Source,
        truth: Truth,
        process: BlockingProcess,
    ) -> None:
        super().__init__(settings, source)
        self._truth, self._process = truth, process
        # Nobody asks for its health.
        self._health = SimpleNamespace(set_serving=lambda *_: None)  # type: ignore[assignment]

    def taken(self, prepared: Prepared) -> None:
        self._process.world.note(self._process.name, f"takes version {prepared.version.number}")
        self._truth.check_replica(self._process.name, self.follower.replica)
        super().taken(prepared)


class Writing:
    """Somebody who writes versions to a folder, in one process after the other.

    Args:
        cluster: The cluster.
        folder: The folder.
        source: Makes what is followed.
    """

    def __init__(self, cluster: Cluster, folder: Path, source: Callable[[], Source]) -> None:
        self._cluster, self._folder, self._source = cluster, folder, source

    async def live(self) -> None:
        """Write in processes that storms may come over, until that is cancelled."""
        await alive(self._cluster, "sink:0", self._write_on)

    def _write_on(self, process: BlockingProcess) -> None:
        world, sink = process.world, None
        while True:
            try:
                if sink is None:
                    sink = StoreSink(self._source(), self._folder, whole_every=3)
                for version in sink.write_next(5.0):
                    world.note(process.name, f"writes version {version.number}")
            except StratagemError as error:
                world.require(not isinstance(error, InternalError), f"the sink gets {error!r}")
                world.note(process.name, f"cannot write: {type(error).__name__}")
                sleep(0.5)


class _InterruptedSystem:
    """Stands where the module `os` does for who writes to stores: a process may end within."""

    def __init__(self, world: World, system: Any) -> None:
        self._world, self._system = world, system

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)

    def write(self, file: int, data: memoryview) -> int:
        """Write some of the bytes, and the others in a moment."""
        if is_blocking():
            self._wait()
            data = data[: self._world.chance.randint(1, len(data))]
        return int(self._system.write(file, data))

    def fsync(self, file: int) -> None:
        """Take a while, as a disk does; that of a server has its own."""
        if is_blocking():
            self._wait()
        else:
            self._system.fsync(file)

    def replace(self, *arguments: Any) -> None:
        """Rename in a moment."""
        self._wait()
        self._system.replace(*arguments)

    def rename(self, *arguments: Any) -> None:
        """Rename in a moment."""
        self._wait()
        self._system.rename(*arguments)

    def _wait(self) -> None:
        if is_blocking():
            sleep(self._world.chance.choice((0.0, 0.01, 0.1)))


@contextmanager
def interrupted_writes(world: World) -> Iterator[None]:
    """Have processes end in the midst of writing to a store."""
    with patch.object(local, "os", _InterruptedSystem(world, os)):
        yield
