"""Workers add known integers to variables of all of them, and meet at a barrier now and then."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable

import torch

from stratagem._ps_client.requests import coordination, reads, variables
from stratagem._ps_client.requests.reads import Reading
from stratagem._ps_client.requests.variables import Writing
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_MODEL, VariableSpec
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_ADD, ASSIGN_MODE_SET
from stratagem_proto.wire.tensors import spec_of
from tests.simulation.cluster import Cluster, Process
from tests.simulation.programs.digits import MOST, digits_of, faults_of, times, vector
from tests.simulation.programs.program import Program
from tests.simulation.world import World

_SUM = "sum"
_WORKERS = 3
_BARRIER_SECONDS = 30.0

Place = tuple[int, int]
"""A worker and a server."""


def spec(name: str, value: torch.Tensor) -> VariableSpec:
    """Describe a variable of a model."""
    return VariableSpec(name=name, tensor=spec_of(value), kind=VARIABLE_KIND_MODEL)


class Adding(Program):
    """Each worker adds to its own element of a vector on each server, and reads all elements."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._sent = defaultdict[Place, set[int]](set)
        self._answered = defaultdict[Place, set[int]](set)
        # What former processes have sent and a later one of the same worker has not found.
        self._fenced = defaultdict[Place, set[int]](set)
        # By server and version, what the vector was then.
        self._known: dict[tuple[int, int], list[int]] = {}
        # By server, that something was sent to it since the last look.
        self._added = defaultdict[int, asyncio.Event](asyncio.Event)
        self._are_all_added = False
        self._meets = self.chance.random() < 0.4
        self._arrived = [0] * _WORKERS
        self._rounds = self.chance.randint(1, 3)
        # Servers copy integers out of shared memory as soon as they come.
        self._dtype = self.chance.choice((torch.int64, torch.float64))

    async def prepare(self, cluster: Cluster) -> None:
        async def create(chief: Process) -> None:
            zeros = torch.zeros(_WORKERS, dtype=self._dtype)
            for server in range(self.num_servers):
                await chief.call(server, variables.create([spec(_SUM, zeros)], [zeros]))

        await cluster.once("chief:0", create)

    async def run(self, cluster: Cluster) -> None:
        # Only servers with logs can show what is not on disk.
        followed = range(self.num_servers) if cluster.logs else ()
        following = [
            self.world.loop.create_task(self._follow(cluster, server)) for server in followed
        ]
        await asyncio.gather(*(self._work(cluster, worker) for worker in range(_WORKERS)))
        self._are_all_added = True
        for server in followed:
            self._added[server].set()
        await asyncio.gather(*following)

    async def _follow(self, cluster: Cluster, server: int) -> None:
        """Read a server while it works on what was sent to it, and again after that."""

        async def look(reader: Process) -> None:
            while not self._are_all_added:
                await self._added[server].wait()
                self._added[server].clear()
                # As long as a quick disk takes to write, or a slow one.
                await asyncio.sleep(self.chance.random() * self.chance.choice((0.03, 1.0)))
                known = self._known_of(server)
                await self.read(reader, server, reader.last.get(server))
                # Whoever has seen what nobody was told of yet may not see it vanish.
                if known < self._known_of(server) and cluster.restart_at_times(server):
                    self._added[server].set()

        await cluster.run_until_done(f"reader:{server}", look)

    def _known_of(self, server: int) -> int:
        """Return how many additions to a server were answered, or read."""
        return sum(len(self._answered[worker, server]) for worker in range(_WORKERS))

    async def _work(self, cluster: Cluster, worker: int) -> None:
        task = f"worker:{worker}"
        if self._meets:
            # A worker that is gone is not at the barrier, so the others end with an error.
            await cluster.run(task, _Adder(self, worker).meet)
        else:
            await cluster.run_until_done(task, _Adder(self, worker).add_all)

    async def judge(self, cluster: Cluster) -> None:
        async def look(reader: Process) -> None:
            for server in range(self.num_servers):
                self._check_sums(server, await self.read(reader, server, None))

        await cluster.once("evaluator:0", look)

    def _check_sums(self, server: int, sums: list[int]) -> None:
        for worker, total in enumerate(sums):
            place = worker, server
            self._require_fenced(place, total)
            for fault in faults_of(total, self._sent[place], self._answered[place]):
                self.world.require(False, f"worker:{worker} on ps:{server}: {fault}")

    async def add(self, process: Process, worker: int, server: int) -> Awaitable[list[int]] | None:
        """Add the worker's next integer; return what to await, unless it is answered."""
        place = worker, server
        digit = len(self._sent[place])
        if digit >= MOST:
            return None
        self._sent[place].add(digit)
        self._added[server].set()
        request = variables.assign([self._writing(worker, digit)])

        def answered() -> None:
            self._answered[place].add(digit)

        if self.chance.random() < 0.3:
            return await process.pipeline(server, request.then(answered))
        (version,) = await process.call(server, request.then(answered))
        process.note(f"has added {digit} to ps:{server}, which is version {version}")
        return None

    def _writing(self, worker: int, digit: int) -> Writing:
        added = vector(_WORKERS, worker, digit, self._dtype)
        if self.chance.random() < 0.5:
            return Writing(_SUM, ASSIGN_MODE_ADD, added)
        one = added[worker : worker + 1]
        return Writing(_SUM, ASSIGN_MODE_ADD, one, rows=torch.tensor([worker]))

    async def read(
        self, process: Process, server: int, last: tuple[int, list[int]] | None
    ) -> list[int]:
        """Read a server's vector, unless its version is the last; check what it lacks."""
        answered = {place: set(found) for place, found in self._answered.items()}
        into = torch.tensor(last[1] if last else [0] * _WORKERS, dtype=self._dtype)
        reading = Reading(_SUM, into, newer_than=last[0] if last else None)
        (version,) = await process.call(server, reads.read([reading]))
        sums = into.long().tolist()
        known = self._known.setdefault((server, version), sums)
        self.world.require(known == sums, f"version {version} of ps:{server} has two values")
        for (worker, where), digits in answered.items():
            lacks = [one for one in digits if where == server and not times(sums[worker], one)]
            what = f"{process.name} read ps:{server} without additions {lacks} of worker:{worker}"
            self.world.require(not lacks, what)
        # What somebody has read may not be lost either, whether or not it was answered.
        for worker, total in enumerate(sums):
            self._require_fenced((worker, server), total)
            self._answered[worker, server].update(digits_of(total))
        process.last[server] = version, sums
        return sums

    def sent(self, worker: int) -> dict[int, set[int]]:
        """Return what a worker has sent to each server so far."""
        return {server: set(self._sent[worker, server]) for server in range(self.num_servers)}

    def fence(self, worker: int, server: int, digits: set[int]) -> None:
        """Note what a former process of a worker has sent and the present one does not find."""
        self._fenced[worker, server] |= digits

    def _require_fenced(self, place: tuple[int, int], total: int) -> None:
        worker, server = place
        late = self._fenced[place] & set(digits_of(total))
        what = (
            f"additions {late} of a former worker:{worker} came to ps:{server} after the next one"
        )
        self.world.require(not late, what)

    def arrive(self, worker: int) -> int:
        """Note that a worker is at the barrier; return how often it was there before."""
        self._arrived[worker] += 1
        return self._arrived[worker]

    def passed(self, worker: int, generation: int) -> None:
        """Check that all workers had come to the barrier that one has passed."""
        missing = [one for one, times in enumerate(self._arrived) if times < generation]
        what = f"worker:{worker} passed barrier {generation} without workers {missing}"
        self.world.require(not missing, what)

    @property
    def rounds(self) -> int:
        """How often workers meet."""
        return self._rounds


class _Adder:
    """The program of one worker."""

    def __init__(self, adding: Adding, worker: int) -> None:
        self._adding, self._worker = adding, worker
        self._chance = adding.chance
        self._left = self._chance.randint(6, 16)
        # What former processes have sent, to the servers that this one has not read yet.
        self._before: dict[int, set[int]] = {}

    async def add_all(self, process: Process) -> None:
        """Add all that is left; a process that is started again goes on."""
        self._before = self._adding.sent(self._worker)
        await self._create_own(process)
        while self._left > 0:
            await self._add_some(process, min(self._left, self._chance.randint(1, 3)))
            if self._chance.random() < 0.3:
                await self._write_own(process)

    async def meet(self, process: Process) -> None:
        """Add a few, meet the others, and read what all have added."""
        for generation in range(1, self._adding.rounds + 1):
            await self._add_some(process, self._chance.randint(1, 4))
            self._adding.arrive(self._worker)
            request = coordination.barrier("b", generation, _WORKERS, _BARRIER_SECONDS)
            await process.call(0, request)
            self._adding.passed(self._worker, generation)

    async def _create_own(self, process: Process) -> None:
        """Create a variable that nobody else creates, so that it cannot be there already."""
        own = torch.zeros(1)
        self._own = f"own/{self._worker}/{self._chance.randbytes(4).hex()}"
        await process.call(1, variables.create([spec(self._own, own)], [own]))
        self._written = 0

    async def _write_own(self, process: Process) -> None:
        """Write increasing numbers, each before the one before is answered; the last remains."""
        begun = []
        for _ in range(self._chance.randint(1, 4)):
            self._written += 1
            value = torch.full((1,), float(self._written))
            writing = Writing(self._own, ASSIGN_MODE_SET, value)
            begun.append(await process.pipeline(1, variables.assign([writing])))
        for outcome in begun:
            await outcome
        into = torch.zeros(1)
        await process.call(1, reads.read([Reading(self._own, into)]))
        what = f"{process.name} has written {self._written} last, and reads {into.item():g}"
        self._adding.world.require(int(into) == self._written, what)

    async def _add_some(self, process: Process, count: int) -> None:
        adding = self._adding
        with process.steps.step_scope():
            begun = [
                await adding.add(process, self._worker, self._chance.randrange(adding.num_servers))
                for _ in range(count)
            ]
            for outcome in filter(None, begun):
                await outcome
        self._left -= count
        server = self._chance.randrange(adding.num_servers)
        sums = await adding.read(process, server, process.last.get(server))
        lost = self._before.pop(server, set()) - set(digits_of(sums[self._worker]))
        adding.fence(self._worker, server, lost)
        await process.idle()
