"""Workers take steps on all servers, and somebody reads all servers as of one moment.

The moment is found as clients find it, for a snapshot or for a checkpoint: new steps are held while
those that have begun come to their end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from stratagem._parameter_server.checkpoints.saving import _is_busy, _progress
from stratagem._ps_client.requests import checkpoints, reads, variables
from stratagem._ps_client.requests.reads import Reading
from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.requests.variables import Writing
from stratagem_proto.errors import StratagemError
from stratagem_proto.v1.checkpoint_pb2 import HoldStepsResponse
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_ADD
from tests.simulation.cluster import Cluster, Process
from tests.simulation.programs.adding import spec
from tests.simulation.programs.digits import MOST, digits_of, vector
from tests.simulation.programs.program import Program
from tests.simulation.world import World

_SUM, WORKERS = "sum", 3
_LOOK_SECONDS, _LOOKS = 0.05, 15

# By server, what each worker has added.
Sums = Sequence[Sequence[int]]


class Observing(Program):
    """Each step of a worker adds to both servers; a moment has all of a step or nothing."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._begun = [0] * WORKERS
        # By worker, the steps that all servers have answered, in one session with each.
        self._taken: list[set[int]] = [set() for _ in range(WORKERS)]
        self._steps = [self.chance.randint(6, 14) for _ in range(WORKERS)]
        self.moments: list[Sums] = []

    async def prepare(self, cluster: Cluster) -> None:
        async def create(chief: Process) -> None:
            for server in range(self.num_servers):
                await chief.call(server, self.creation(server))

        await cluster.once("chief:0", create)

    def creation(self, server: int) -> Request[Any]:
        """Return the request that creates what a server has."""
        zeros = torch.zeros(WORKERS, dtype=torch.int64)
        return variables.create([spec(_SUM, zeros)], [zeros])

    def writings(self, server: int, worker: int, digit: int) -> list[Writing]:
        """Return what a step of a worker writes on a server."""
        return [Writing(_SUM, ASSIGN_MODE_ADD, vector(WORKERS, worker, digit))]

    async def run(self, cluster: Cluster) -> None:
        observing = self.world.loop.create_task(self._observe_all(cluster))
        await self.work(cluster)
        observing.cancel()
        await asyncio.wait([observing])

    async def work(self, cluster: Cluster) -> None:
        """Have all workers take their steps."""
        await asyncio.gather(*(self._work(cluster, worker) for worker in range(WORKERS)))

    async def _work(self, cluster: Cluster, worker: int) -> None:
        async def take_steps(process: Process) -> None:
            # The last step, and how often the process had been taken for gone when it began.
            before: tuple[int, int] | None = None
            while self._begun[worker] < min(self._steps[worker], MOST):
                losses = process.losses
                with process.steps.step_scope():
                    taken = await self._step(process, worker)
                # Servers do not wait for the step of a client that they take for gone. The client
                # hears of that when it has called all of them again.
                if before is not None and before[1] == process.losses:
                    self._taken[worker].add(before[0])
                before = taken, losses
                await process.tell_last_step()
                await process.idle()

        await cluster.run_until_done(f"worker:{worker}", take_steps)

    async def _step(self, process: Process, worker: int) -> int:
        digit = self._begun[worker]
        self._begun[worker] += 1
        for server in self.chance.sample(range(self.num_servers), self.num_servers):
            await process.call(server, variables.assign(self.writings(server, worker, digit)))
        return digit

    async def _observe_all(self, cluster: Cluster) -> None:
        """Look at moments in one process after the other."""
        while True:
            await cluster.run("evaluator:0", self._observe)
            await asyncio.sleep(self.chance.random() * 5.0)

    async def _observe(self, observer: Process) -> None:
        while True:
            await asyncio.sleep(self.chance.choice((0.1, 1.0, 4.0)))
            cut = self.chance.randbytes(16)
            try:
                if await self.held(observer, cut, {}) is not None:
                    await self._look(observer, cut)
            except StratagemError:
                observer.note("finds no moment")
                with suppress(StratagemError):
                    await observer.on_all(partial(checkpoints.release_steps, cut))

    async def held(
        self, observer: Process, cut: bytes, own: Mapping[bytes, int]
    ) -> Sequence[HoldStepsResponse] | None:
        """Hold new steps until those that have begun are over; as `take_cut` of clients.

        Returns:
            What the servers say; None if steps were under way for too long.
        """
        begun: dict[bytes, int] = {}
        for _ in range(_LOOKS):
            hold = partial(checkpoints.hold_steps, cut, {**begun, **own}, _LOOK_SECONDS)
            answers = await observer.on_all(hold)
            clients = _progress(answers)
            if not any(map(_is_busy, clients.values())):
                return answers
            begun = {client: each.begun for client, each in clients.items()}
        await observer.on_all(partial(checkpoints.release_steps, cut))
        return None

    async def _look(self, observer: Process, cut: bytes) -> None:
        await observer.on_all(partial(checkpoints.open_snapshot, cut))
        moment = []
        for server in range(self.num_servers):
            sums = torch.zeros(WORKERS, dtype=torch.int64)
            await asyncio.sleep(self.chance.random() * 0.1)
            await observer.call(server, reads.read([Reading(_SUM, sums)], snapshot=cut))
            moment.append(sums.tolist())
        self.moments.append(moment)
        observer.note(f"reads a moment: {moment}")
        await observer.on_all(checkpoints.close_snapshot)

    async def judge(self, cluster: Cluster) -> None:
        self.judge_moments()

    def judge_moments(self) -> None:
        """Check that each moment has all of a step or nothing."""
        for moment in self.moments:
            for worker, taken in enumerate(self._taken):
                # Who has ended in the midst of a step has not taken it.
                seen = [taken.intersection(digits_of(sums[worker])) for sums in moment]
                parted = set[int]().union(*seen) - taken.intersection(*seen)
                what = f"a moment has parts of the steps {sorted(parted)} of worker:{worker}"
                self.world.require(not parted, what)
