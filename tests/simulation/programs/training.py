"""Workers train under a consistency; the checker of consistency judges what they read.

Each step of a worker has a digit of its own in a sum, which so tells which steps a read contains.
A process that ends in the midst of a step leaves open whether its update counts, and what the
servers have in the end tells. Servers are judged one by one, since such an update may count on one
of them and not on the other.

What a process sends without waiting for others, and that arrives after its end, comes in no order
with what the next process of the task sends. So each process is a writer of its own in histories.
In synchronous steps a worker is one writer, however often it is started again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import torch

from stratagem._parameter_server.hosting.steps import (
    decoded_consistency,
    encoded_consistency,
)
from stratagem._ps_client.requests import coordination, reads, updates, variables
from stratagem._ps_client.requests.reads import Reading as What
from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.requests.updates import SentGradient
from stratagem.consistency import Async, Bounded, Consistency, Sync
from stratagem_proto.errors import StratagemError
from stratagem_proto.programs.optimizers import OPTIMIZERS, values_of
from stratagem_proto.programs.update_programs import encode_values
from stratagem_proto.v1.consistency_pb2 import StepBegin
from stratagem_proto.v1.parameter_server_pb2 import Contribution, StepMark
from stratagem_proto.v1.update_program_pb2 import REDUCTION_SUM, OptimizerProgram
from tests.consistency.checker import Checker
from tests.consistency.history import Answered, Event, Gone, Leave, Read, Reading, Seen, Sent
from tests.simulation.cluster import Cluster, Process, together
from tests.simulation.programs.adding import spec
from tests.simulation.programs.digits import amount, digits_of, faults_of, times
from tests.simulation.programs.program import Program
from tests.simulation.world import World

_GROUP, _SUMS = "SGD", "sums"
_WORKERS = 3
_WAIT_SECONDS = 30.0
# Each process that does not take synchronous steps is one.
_MOST_WRITERS = 36


def _program() -> OptimizerProgram:
    """Add gradients."""
    (group,) = torch.optim.SGD([torch.empty(0)], lr=1.0, maximize=True).param_groups
    encoded = encode_values(values_of(OPTIMIZERS["SGD"], group))
    return OptimizerProgram(name=_GROUP, class_name="SGD", groups=[encoded])


def _zeros() -> torch.Tensor:
    return torch.zeros(_MOST_WRITERS, dtype=torch.float64)


@dataclass(frozen=True)
class _ServerEvent:
    """An event of a history, and the server that it is about; None for all."""

    event: Event
    server: int | None = None


class Training(Program):
    """Each worker takes some steps: begins, reads, and pushes to all servers."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        choices = (Async(), Bounded(0), Bounded(1), Bounded(2), Sync(), Sync(2))
        self.consistency: Consistency = self.chance.choice(choices)
        self.steps = self.chance.randint(4, 8)
        self.num_reads = count()
        self.program = _program()
        self._history: list[_ServerEvent] = []
        # By worker, the number of its present writer.
        self._writers = list(range(_WORKERS))
        self._num_writers = _WORKERS
        self._has_begun = [False] * _WORKERS
        self._gone: set[int] = set()
        self._changes = [self.chance.choice(choices) for _ in range(self._num_changes())]
        world.note("program", f"{self.consistency} for {self.steps} steps, then {self._changes}")

    def _num_changes(self) -> int:
        """Choose how often the consistency changes; then no process ends in the midst of that."""
        if self.chance.random() < 0.75:
            return 0
        self.storms, self.steps = (), 12
        return self.chance.randint(1, 3)

    @property
    def backs_up(self) -> bool:
        """Whether a worker that ends in the midst of a step may leave it open for ever."""
        return bool(self._changes) or bool(self.consistency._enough(_WORKERS))

    async def prepare(self, cluster: Cluster) -> None:
        async def create(chief: Process) -> None:
            for server in range(self.num_servers):
                zeros = _zeros()
                await chief.call(server, variables.create([spec(_SUMS, zeros)], [zeros]))

        await cluster.once("chief:0", create)
        self._first = cluster.servers[0]
        self._first.served = self._look_at_clocks

    async def run(self, cluster: Cluster) -> None:
        changing = self.world.loop.create_task(self._change_all(cluster))
        await asyncio.gather(*(self._work(cluster, worker) for worker in range(_WORKERS)))
        changing.cancel()
        await asyncio.wait([changing])

    async def _change_all(self, cluster: Cluster) -> None:
        """Change the consistency now and then, once there is a group that has one."""
        for consistency in self._changes:
            await asyncio.sleep(0.5 + self.chance.random() * 5.0)
            request = coordination.change(_GROUP, encoded_consistency(consistency))
            with suppress(StratagemError):
                await cluster.once("chief:0", partial(_sent, request))

    async def _work(self, cluster: Cluster, number: int) -> None:
        task, worker = f"worker:{number}", _Worker(self, number)
        if self.backs_up:
            await cluster.run(task, worker.train)
        else:
            await cluster.run_until_done(task, worker.train)

    def writer(self, worker: int) -> int:
        """Return the writer of a process of a worker that begins."""
        if isinstance(self.consistency, Sync):
            return worker
        if self._has_begun[worker]:
            self._leave(worker)
            self._writers[worker] = self._num_writers
            self._num_writers += 1
        self._has_begun[worker] = True
        return self._writers[worker]

    @property
    def has_writers(self) -> bool:
        """Whether another process may begin."""
        return self._num_writers < _MOST_WRITERS

    def _look_at_clocks(self) -> None:
        """Note which workers the first server takes for gone by now."""
        for group in self._first.state.clocks.report():
            gone = {clock.worker for clock in group.workers if clock.gone}
            for worker in sorted(gone - self._gone):
                self._leave(worker)
            self._gone = gone

    def _leave(self, worker: int) -> None:
        self.happen(Gone(self._writers[worker]))

    def leave(self, leave: Leave, worker: int) -> None:
        """Note that a worker got leave, and whether it is taken for gone since."""
        self.happen(leave)
        if worker in self._gone:
            self._leave(worker)

    def happen(self, event: Event, server: int | None = None) -> None:
        """Add an event to the history."""
        self._history.append(_ServerEvent(event, server))
        self.world.note("history", f"{event}" + ("" if server is None else f" on ps:{server}"))

    def seen(self, sums: torch.Tensor) -> Sequence[Seen]:
        """Return how many steps of each writer sums contain, and which is the last."""
        found = []
        for total in sums.tolist():
            steps = digits_of(int(total)) if total else ()
            found.append((len(steps), max(steps, default=0)))
        return found

    async def judge(self, cluster: Cluster) -> None:
        async def look(reader: Process) -> None:
            for server in range(self.num_servers):
                sums = _zeros()
                await reader.call(server, reads.read([What(_SUMS, sums)]))
                self._check(server, [int(each) for each in sums.tolist()])

        await cluster.once("evaluator:0", look)

    def _of(self, server: int) -> Iterator[_ServerEvent]:
        return (one for one in self._history if one.server in (None, server))

    def _check_completeness(self, server: int, applied: set[int]) -> None:
        if not self.backs_up:
            missing = set(range(1, self.steps + 1)) - applied
            self.world.require(not missing, f"steps {missing} are not applied on ps:{server}")

    def _fitting(self, event: Event) -> Event:
        """Leave out what a read says of writers that there never were."""
        if isinstance(event, Read):
            return replace(event, seen=event.seen[: self._num_writers])
        return event

    def _check(self, server: int, sums: Sequence[int]) -> None:
        history = [self._fitting(one.event) for one in self._of(server)]
        sent: dict[int, set[int]] = defaultdict(set)
        answered: dict[int, set[int]] = defaultdict(set)
        for event in history:
            if isinstance(event, Sent):
                sent[event.worker].add(event.step)
            elif isinstance(event, Answered) and event.counted:
                answered[event.worker].add(event.step)
        if self._changes or isinstance(self.consistency, Sync):
            # A step is applied once enough workers have contributed, which some never do.
            applied = {step for total in sums for step in digits_of(total)}
            answered = {writer: steps & applied for writer, steps in answered.items()}
            self._check_completeness(server, applied)
        for writer, total in enumerate(sums):
            steps = answered.get(writer, set())
            for fault in faults_of(total, sent[writer], steps):
                self.world.require(False, f"writer {writer} on ps:{server}: {fault}")
            # Nobody was told, but it counts.
            open_ends = sorted(sent[writer] - steps)
            history += [Answered(writer, step) for step in open_ends if times(total, step)]
        later = range(_WORKERS, self._num_writers)
        found = Checker([*map(Gone, later), *history], self._num_writers).violations()
        for violation in found:
            self.world.require(False, f"ps:{server}: {violation}")


async def _sent(request: Request[Any], process: Process) -> None:
    await process.call(0, request)


class _Worker:
    """One worker; a process that is started again begins with what servers tell it."""

    def __init__(self, training: Training, number: int) -> None:
        self._training, self._number = training, number
        self._chance = training.chance

    async def train(self, process: Process) -> None:
        """Take steps until there are none left."""
        training = self._training
        if not training.has_writers:
            return
        self._process, self._writer = process, training.writer(self._number)
        self._finished = self._counted = 0
        while (leave := await self._begin()).step <= training.steps:
            for _ in range(self._chance.randint(1, 2)):
                for server in range(training.num_servers):
                    await self._read(server, training)
            with process.steps.step_scope():
                await self._step(leave)
            await process.idle()
        # A worker that contributes to a step stays until it is applied.
        for server in range(training.num_servers):
            await self._read(server, training)

    async def _begin(self) -> Leave:
        begin = StepBegin(
            group=_GROUP,
            worker=self._number,
            num_workers=_WORKERS,
            finished=self._finished,
            declared=encoded_consistency(self._training.consistency),
        )
        (grant,) = await self._process.call(0, coordination.begin([begin], _WAIT_SECONDS))
        leave = Leave(self._writer, grant.step, decoded_consistency(grant.consistency))
        self._training.leave(leave, self._number)
        self._after = max(self._counted, grant.closed)
        return leave

    async def _read(self, server: int, training: Training) -> None:
        sums = _zeros()
        mark = StepMark(group=_GROUP, step=self._after) if self._after else None
        number = next(training.num_reads)
        training.happen(Reading(self._writer, number), server)
        await self._process.call(server, reads.read([What(_SUMS, sums)], mark, _WAIT_SECONDS))
        training.happen(Read(self._writer, number, training.seen(sums)), server)

    async def _step(self, leave: Leave) -> None:
        training = self._training
        training.happen(Sent(self._writer, leave.step))
        contribution = self._contribution(leave)
        servers = list(range(training.num_servers))
        await together(self._push(server, leave, contribution) for server in servers)
        if contribution is not None:
            counted = await self._is_counted(contribution)
            training.happen(Answered(self._writer, leave.step, counted))
            self._counted = leave.step if counted else self._counted
        self._finished = leave.step

    async def _push(self, server: int, leave: Leave, contribution: Contribution | None) -> None:
        gradient = _zeros()
        gradient[self._writer] = amount(leave.step)
        gradients = [SentGradient(_SUMS, gradient, 0)]
        request = updates.step(self._training.program, gradients, contribution)
        await self._process.call(server, request)
        if contribution is None:
            self._training.happen(Answered(self._writer, leave.step), server)

    def _contribution(self, leave: Leave) -> Contribution | None:
        if not isinstance(leave.consistency, Sync):
            return None
        return Contribution(
            step=StepMark(group=_GROUP, step=leave.step),
            worker=self._number,
            num_workers=_WORKERS,
            replicas=1,
            reduction=REDUCTION_SUM,
            replicas_to_aggregate=leave.consistency._enough(_WORKERS),
        )

    async def _is_counted(self, contribution: Contribution) -> bool:
        """Commit as clients do: with backup workers the first server decides, else the last."""
        backups = bool(contribution.replicas_to_aggregate)
        servers = list(range(self._training.num_servers))
        for server in servers if backups else servers[::-1]:
            response = await self._process.call(
                server, updates.commit(contribution.step, _WAIT_SECONDS)
            )
            if backups and response.dropped:
                return False
        return True
