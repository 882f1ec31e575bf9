"""Workers add to servers that keep nothing, and end now and then.

Who spoke to a run of the server that has ended gets an error, and never an answer of the next run
to what it had sent before.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

import torch

from stratagem._ps_client.requests import reads, variables
from stratagem._ps_client.requests.reads import Reading
from stratagem._ps_client.requests.variables import Writing
from stratagem_proto.errors import AlreadyExistsError, StratagemError
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_ADD
from tests.simulation.cluster import Cluster, Process
from tests.simulation.programs.adding import spec
from tests.simulation.programs.digits import MOST, faults_of, vector
from tests.simulation.programs.program import Program
from tests.simulation.world import RESTART, STORMS, World

_SUM, _WORKERS = "sum", 3

Place = tuple[int, int, bytes]
"""A worker, a server, and the run of the server that the worker's session is with."""


class Restarting(Program):
    """Each process meets the runs of servers that there are, and adds to what they host."""

    storms = (*STORMS, RESTART)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._digits: dict[tuple[int, int], int] = defaultdict(int)
        self._sent: dict[Place, set[int]] = defaultdict(set)
        self._answered: dict[Place, set[int]] = defaultdict(set)
        self._left = [self.chance.randint(5, 12) for _ in range(_WORKERS)]

    async def prepare(self, cluster: Cluster) -> None:
        """Create nothing: a server that starts has nothing."""

    async def run(self, cluster: Cluster) -> None:
        await asyncio.gather(*(self._work(cluster, worker) for worker in range(_WORKERS)))

    async def _work(self, cluster: Cluster, worker: int) -> None:
        async def add_all(process: Process) -> None:
            for server in range(self.num_servers):
                await self._attach(process, server)
            while self._left[worker] > 0:
                self._left[worker] -= 1
                await self._add(process, worker, self.chance.randrange(self.num_servers))
                await process.idle()

        await cluster.run_until_done(f"worker:{worker}", add_all)

    async def _attach(self, process: Process, server: int) -> None:
        zeros = torch.zeros(_WORKERS, dtype=torch.int64)
        try:
            await process.call(server, variables.create([spec(_SUM, zeros)], [zeros]))
        except AlreadyExistsError:
            process.note(f"finds the variable on ps:{server}")

    async def _add(self, process: Process, worker: int, server: int) -> None:
        digit = self._digits[worker, server]
        if digit >= MOST:
            return
        self._digits[worker, server] += 1
        place = worker, server, process.run_of(server)
        self._sent[place].add(digit)
        writing = Writing(_SUM, ASSIGN_MODE_ADD, vector(_WORKERS, worker, digit))
        await process.call(server, variables.assign([writing]))
        self._answered[place].add(digit)

    async def judge(self, cluster: Cluster) -> None:
        async def look(reader: Process) -> None:
            for number, server in enumerate(cluster.servers):
                sums = torch.zeros(_WORKERS, dtype=torch.int64)
                try:
                    await reader.call(number, reads.read([Reading(_SUM, sums)]))
                except StratagemError:
                    reader.note("finds a server that nobody has met since it was restarted")
                self._check(number, server.state.incarnation, sums.tolist())

        await cluster.once("evaluator:0", look)

    def _check(self, server: int, run: bytes, sums: list[int]) -> None:
        for worker, total in enumerate(sums):
            place = worker, server, run
            for fault in faults_of(total, self._sent[place], self._answered[place]):
                self.world.require(False, f"worker:{worker} on ps:{server}: {fault}")
