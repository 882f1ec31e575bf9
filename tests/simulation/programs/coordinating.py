"""A coordinator's functions, which may run on several workers each, read data and add to sums."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import ClassVar

import torch

from stratagem._ps_client.names import running
from stratagem._ps_client.requests import coordination, reads, variables
from stratagem._ps_client.requests.coordination import DataPass
from stratagem._ps_client.requests.reads import Reading
from stratagem._ps_client.requests.variables import Writing
from stratagem_proto.errors import DeadlineExceededError, StratagemError, UnavailableError
from stratagem_proto.v1.session_pb2 import ClosureIdentity
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_ADD
from tests.simulation.cluster import Cluster, Process
from tests.simulation.programs.adding import spec
from tests.simulation.programs.digits import faults_of, vector
from tests.simulation.programs.program import Program
from tests.simulation.world import World

_SUMS, _WORKERS = "sums", 3
# The elements of the sums: which batches were read, and which functions have run.
_BATCHES, _FUNCTIONS, _SIZE = 0, 1, 2


class Coordinating(Program):
    """Functions are numbered from 1; each draws a batch and adds the numbers of both."""

    num_batches: ClassVar[int] = 8

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._space = self.chance.randbytes(16)
        # More than there are batches: the last ones find none.
        self._numbers = range(1, self.num_batches + self.chance.randint(1, 4))
        self._queue = deque(self._numbers)
        self._batches: dict[int, int | None] = {}
        self._pass = DataPass("data", 0, 0)

    async def prepare(self, cluster: Cluster) -> None:
        async def create(chief: Process) -> None:
            for server in range(self.num_servers):
                zeros = torch.zeros(_SIZE, dtype=torch.int64)
                await chief.call(server, variables.create([spec(_SUMS, zeros)], [zeros]))

        await cluster.once("chief:0", create)

    async def run(self, cluster: Cluster) -> None:
        await cluster.once("coordinator:0", self._open_pass)
        ending = self.world.loop.create_task(cluster.once("coordinator:0", self._end_functions))
        lives = (
            cluster.run_until_done(f"worker:{worker}", self._work) for worker in range(_WORKERS)
        )
        await asyncio.gather(*lives)
        await ending

    @property
    def _is_done(self) -> bool:
        return len(self._batches) == len(self._numbers)

    async def _open_pass(self, coordinator: Process) -> None:
        request = coordination.open_pass("data", self.num_batches, 7, self._space)
        tries, opened = 0, None
        while opened is None:
            tries += 1
            # A reply may be later than the end of the call: the pass may have begun all the same.
            with suppress(DeadlineExceededError, UnavailableError):
                opened = await coordinator.call(0, request)
        what = f"the pass that was begun {tries} times has number {opened.number}"
        self.world.require(opened.number < tries, what)
        self._pass = DataPass("data", opened.number, 0)

    async def _end_functions(self, coordinator: Process) -> None:
        """Tell servers now and then which functions have ended, until all have."""
        while not self._is_done:
            await asyncio.sleep(self.chance.random() * 5.0)
            with suppress(StratagemError):
                await self._tell_ended(coordinator)

    async def _tell_ended(self, coordinator: Process) -> None:
        ended = sorted(self._batches)
        through = max(ended, default=0)
        unended = set(range(1, through + 1)).difference(ended)
        for server in range(self.num_servers):
            request = coordination.end_closures(self._space, through, unended)
            await coordinator.call(server, request)

    async def _work(self, process: Process) -> None:
        """Run functions until all have ended; one that fails is for another worker."""
        while not self._is_done:
            await process.idle()
            if self._queue:
                number = self._queue.popleft()
                # Whoever has not ended it by then may be lost, or may go on all the same.
                patience = 2.0 + self.chance.random() * 6.0
                self.world.loop.call_later(patience, self._put_back, number)
                process.note(f"runs function {number}")
                with running(ClosureIdentity(space=self._space, number=number)):
                    await self._run_function(process, number)
            else:
                await asyncio.sleep(0.5)

    def _put_back(self, number: int) -> None:
        if number not in self._batches and number not in self._queue:
            self._queue.append(number)

    async def _run_function(self, process: Process, number: int) -> None:
        with process.steps.step_scope():
            drawn = await process.call(0, coordination.draw_batch(self._pass, self.num_batches))
            for server in range(self.num_servers):
                await self._add(process, server, number, drawn)
        process.note(f"has run function {number} with batch {drawn}")
        known = self._batches.setdefault(number, drawn)
        what = f"function {number} has read batch {known} once and batch {drawn} then"
        self.world.require(known == drawn, what)

    async def _add(self, process: Process, server: int, number: int, batch: int | None) -> None:
        added = vector(_SIZE, _FUNCTIONS, number)
        if batch is not None:
            added += vector(_SIZE, _BATCHES, batch)
        writing = Writing(_SUMS, ASSIGN_MODE_ADD, added)
        if self.chance.random() < 0.5:
            await process.call(server, variables.assign([writing]))
        else:
            await (await process.pipeline(server, variables.assign([writing])))

    async def judge(self, cluster: Cluster) -> None:
        async def look(coordinator: Process) -> None:
            await self._tell_ended(coordinator)
            for server in range(self.num_servers):
                sums = torch.zeros(_SIZE, dtype=torch.int64)
                await coordinator.call(server, reads.read([Reading(_SUMS, sums)]))
                self._check(server, sums.tolist())
                left = cluster.servers[server].state.closures.count
                self.world.require(not left, f"ps:{server} records {left} ended functions")

        await cluster.once("coordinator:0", look)

    def _check(self, server: int, sums: list[int]) -> None:
        batches, numbers = set(range(self.num_batches)), set(self._numbers)
        for fault in faults_of(sums[_BATCHES], batches, batches):
            self.world.require(False, f"batches on ps:{server}: {fault}")
        for fault in faults_of(sums[_FUNCTIONS], numbers, numbers):
            self.world.require(False, f"functions on ps:{server}: {fault}")
        read = sorted(one for one in self._batches.values() if one is not None)
        self.world.require(read == sorted(batches), f"functions have read the batches {read}")
