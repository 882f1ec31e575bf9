"""Workers add to servers with logs that lose what they had answered, and readers follow.

Nobody finds less on a server than what it was told there. Whoever knows better than a server gets
an error, and a process that is started in its place goes on with what there is.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import defaultdict
from collections.abc import Awaitable
from pathlib import Path

import torch

from stratagem._ps_client.requests import reads, variables
from stratagem._ps_client.requests.reads import Reading
from stratagem._ps_client.requests.variables import Writing
from stratagem_proto.errors import AlreadyExistsError
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_ADD
from stratagem_storage.log import HEADER_BYTES, WRITTEN, decode_header, first_of, segments_in
from tests.simulation.cluster import Cluster, Process
from tests.simulation.programs.adding import spec
from tests.simulation.programs.digits import MOST, digits_of, faults_of, times, vector
from tests.simulation.programs.program import Program
from tests.simulation.servers import SimulatedServer
from tests.simulation.world import World

_SUM, _WORKERS = "sum", 3

_MOST_BATCHES = 8

Place = tuple[int, int]
"""A worker and a server."""


class Losing(Program):
    """Each process adds, reads, and remembers what it was told."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._sent = defaultdict[Place, set[int]](set)
        self._left = [self.chance.randint(8, 20) for _ in range(_WORKERS)]
        self._are_all_added = False

    async def prepare(self, cluster: Cluster) -> None:
        for server in cluster.servers:
            assert isinstance(server, SimulatedServer)
            server.lose = _Losses(self.world, server).lose

    async def run(self, cluster: Cluster) -> None:
        readers = [
            self.world.loop.create_task(self._follow(cluster, number)) for number in range(2)
        ]
        await asyncio.gather(*(self._work(cluster, worker) for worker in range(_WORKERS)))
        self._are_all_added = True
        await asyncio.gather(*readers)

    async def _work(self, cluster: Cluster, worker: int) -> None:
        async def add_all(process: Process) -> None:
            known = defaultdict[Place, set[int]](set)
            while self._left[worker] > 0:
                self._left[worker] -= 1
                server = self.chance.randrange(self.num_servers)
                await self._attach(process, server)
                begun = [
                    await self._add(process, worker, server, known)
                    for _ in range(self.chance.randint(1, 3))
                ]
                for outcome in filter(None, begun):
                    await outcome
                if self.chance.random() < 0.7:
                    await self._read(process, server, known)
                await process.idle()

        await cluster.run_until_done(f"worker:{worker}", add_all)

    async def _follow(self, cluster: Cluster, number: int) -> None:
        async def look(process: Process) -> None:
            known = defaultdict[Place, set[int]](set)
            while not self._are_all_added:
                server = self.chance.randrange(self.num_servers)
                await self._attach(process, server)
                await self._read(process, server, known)
                await process.idle()
                await asyncio.sleep(self.chance.random())

        await cluster.run_until_done(f"reader:{number}", look)

    async def _attach(self, process: Process, server: int) -> None:
        if server in process.last:
            return
        zeros = torch.zeros(_WORKERS, dtype=torch.int64)
        try:
            await process.call(server, variables.create([spec(_SUM, zeros)], [zeros]))
        except AlreadyExistsError:
            process.note(f"finds the variable on ps:{server}")
        process.last[server] = 0, [0] * _WORKERS

    async def _add(
        self, process: Process, worker: int, server: int, known: dict[Place, set[int]]
    ) -> Awaitable[list[int]] | None:
        place = worker, server
        digit = len(self._sent[place])
        if digit >= MOST:
            return None
        self._sent[place].add(digit)
        writing = Writing(_SUM, ASSIGN_MODE_ADD, vector(_WORKERS, worker, digit))
        request = variables.assign([writing]).then(lambda: known[place].add(digit))
        if self.chance.random() < 0.3:
            return await process.pipeline(server, request)
        await process.call(server, request)
        return None

    async def _read(self, process: Process, server: int, known: dict[Place, set[int]]) -> None:
        """Read a server's vector, which has all that the process knows of it."""
        told = {place: set(digits) for place, digits in known.items() if place[1] == server}
        version, values = process.last[server]
        into = torch.tensor(values)
        reading = Reading(_SUM, into, newer_than=version or None)
        (version,) = await process.call(server, reads.read([reading]))
        sums = into.tolist()
        for (worker, _), digits in told.items():
            lost = [digit for digit in sorted(digits) if not times(sums[worker], digit)]
            what = f"{process.name} reads ps:{server} without additions {lost} of worker:{worker}"
            self.world.require(not lost, f"{what}, of which it was told")
        for worker, total in enumerate(sums):
            known[worker, server].update(digits_of(total))
        process.last[server] = version, sums

    async def judge(self, cluster: Cluster) -> None:
        async def look(reader: Process) -> None:
            for server in range(self.num_servers):
                await self._attach(reader, server)
                sums = torch.zeros(_WORKERS, dtype=torch.int64)
                await reader.call(server, reads.read([Reading(_SUM, sums)]))
                for worker, total in enumerate(sums.tolist()):
                    for fault in faults_of(total, self._sent[worker, server], ()):
                        self.world.require(False, f"worker:{worker} on ps:{server}: {fault}")

        await cluster.once("evaluator:0", look)


class _Losses:
    """What a server loses when it ends, as it may happen outside of it.

    Args:
        world: The run.
        server: The server.
    """

    def __init__(self, world: World, server: SimulatedServer) -> None:
        self._world, self._chance = world, world.chance
        self._older = server.state_folder.parent.with_name(f"{server.name}-older")

    def lose(self, state: Path) -> str:
        """Take something away, now and then; return what."""
        what = ""
        if self._world.strikes("lost end", 0.6):
            what = self._chance.choice((self._go_back, self._cut, self._drop_segment))(state)
        elif self._chance.random() < 0.5:
            shutil.rmtree(self._older, ignore_errors=True)
            shutil.copytree(state, self._older)
        if what:
            # It would tell the server, which would not start.
            (state / WRITTEN).unlink(missing_ok=True)
        return what

    def _go_back(self, state: Path) -> str:
        if not self._older.exists():
            return ""
        shutil.rmtree(state)
        shutil.copytree(self._older, state)
        return "all since an older copy"

    def _cut(self, state: Path) -> str:
        segments = segments_in(state)
        begins = _batches(segments[-1]) if segments else []
        if len(begins) < 2:
            return ""
        count = self._chance.randint(1, min(_MOST_BATCHES, len(begins) - 1))
        os.truncate(segments[-1], begins[-count])
        return f"{count} batches"

    def _drop_segment(self, state: Path) -> str:
        segments = segments_in(state)
        # An image has what is before the last one, if that is the only one.
        if len(segments) < 2 or first_of(segments[-1]) == 1:
            return ""
        segments[-1].unlink()
        return "a segment"


def _batches(segment: Path) -> list[int]:
    """Where the batches of a segment begin, behind its head."""
    data, begins, offset, position = segment.read_bytes(), [], 0, first_of(segment) - 1
    while (header := decode_header(data[offset:])) is not None:
        if offset and header.first != position + 1:
            break
        begins.append(offset)
        position += header.records if offset else 0
        offset += HEADER_BYTES + header.nbytes
    return begins[1:]
