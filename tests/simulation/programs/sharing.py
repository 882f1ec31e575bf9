"""Workers take local steps, and share what came of some of them at once, with their own state.

Each local step of a worker has an element of its own, in which it leaves a mark, and a worker's own
optimizer counts the steps behind it. So the servers tell in the end which local steps count, how
often, and whether the state that they keep of a worker is that after all of them.

What a process does that is started again is decided by the client's own `StepCounter`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from stratagem._cluster.tasks import ClusterSpec, Membership
from stratagem._parameter_server.checkpoints.progress import StepCounter, WorkerStates
from stratagem._parameter_server.checkpoints.restoring import half_restored
from stratagem._parameter_server.hosting.push import PullMode
from stratagem._parameter_server.hosting.steps import StepTracker
from stratagem._parameter_server.inner_states import keys_of_worker
from stratagem._ps_client.checkpoint_steps import CheckpointSteps
from stratagem._ps_client.requests import checkpoints, coordination, reads, updates, variables
from stratagem._ps_client.requests.reads import Reading
from stratagem._ps_client.requests.updates import SentGradient
from stratagem._ps_client.requests.variables import Writing
from stratagem.compression import Compression, Int4, Int8
from stratagem.consistency import Async, Bounded, Consistency, Sync
from stratagem_proto.errors import UnstagedContributionError
from stratagem_proto.programs.optimizers import OPTIMIZERS, values_of
from stratagem_proto.programs.update_programs import encode_values
from stratagem_proto.v1.parameter_server_pb2 import Contribution, StepMark
from stratagem_proto.v1.update_program_pb2 import REDUCTION_SUM, OptimizerProgram
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_SLOT, VariableSpec
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_SET
from stratagem_proto.wire.encodings import Encoded
from stratagem_proto.wire.tensors import spec_of
from tests.simulation.cluster import Cluster, Process, together
from tests.simulation.programs.adding import spec
from tests.simulation.programs.program import Program
from tests.simulation.world import World

_OUTER, _VALUE, _WORKERS = "SGD", "w", 3
_WAIT_SECONDS = 30.0
# Exact in 15 and in 255 levels.
_MARK = 7 * 127.0


def _slot(worker: int) -> str:
    (key,) = keys_of_worker({"step": torch.zeros(())}, worker)
    return f"{_VALUE}/{_OUTER}/{key}"


def _outer() -> OptimizerProgram:
    """Take each difference off as it is."""
    (group,) = torch.optim.SGD([torch.empty(0)], lr=1.0).param_groups
    encoded = encode_values(values_of(OPTIMIZERS[_OUTER], group))
    return OptimizerProgram(name=_OUTER, class_name=_OUTER, groups=[encoded])


class Sharing(Program):
    """Each worker shares on all servers, whenever it has taken some local steps."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        chance = self.chance
        self.consistency: Consistency = chance.choice((Async(), Async(), Bounded(1), Sync()))
        self.every, self.shares = chance.randint(1, 3), chance.randint(4, 9)
        self.keeps_state = chance.random() < 0.7
        self.compression: Compression | None = chance.choice((None, Int8(), Int4()))
        self.pull_mode = chance.choice((PullMode.NEVER, PullMode.IN_FLIGHT))
        self.outer = _outer()
        world.note("program", f"{self.shares} shares of {self.every} steps, {self.consistency}")

    @property
    def steps(self) -> int:
        """How many local steps each worker takes."""
        return self.every * self.shares

    def zeros(self) -> torch.Tensor:
        """Return values without marks."""
        return torch.zeros(_WORKERS * self.steps)

    async def prepare(self, cluster: Cluster) -> None:
        async def create(chief: Process) -> None:
            for server in range(self.num_servers):
                await chief.call(
                    server, variables.create([spec(_VALUE, self.zeros())], [self.zeros()])
                )
                none = torch.zeros(1)
                slots = [
                    VariableSpec(
                        name=_slot(worker),
                        tensor=spec_of(none),
                        kind=VARIABLE_KIND_SLOT,
                        slot_of=_VALUE,
                    )
                    for worker in range(_WORKERS)
                ]
                await chief.call(server, variables.create(slots, [none] * _WORKERS))

        await cluster.once("chief:0", create)

    async def run(self, cluster: Cluster) -> None:
        async def train(process: Process) -> None:
            await _Worker(self, process).train()

        lives = (cluster.run_until_done(f"worker:{one}", train) for one in range(_WORKERS))
        await asyncio.gather(*lives)

    def encoded(self, difference: torch.Tensor) -> torch.Tensor | Encoded:
        """Return a difference as it travels."""
        return self.compression.encode(difference) if self.compression else difference

    async def judge(self, cluster: Cluster) -> None:
        async def look(reader: Process) -> None:
            for server in range(self.num_servers):
                marks = self.zeros()
                states = {_slot(one): torch.zeros(1) for one in range(_WORKERS)}
                readings = [Reading(_VALUE, marks), *(Reading(*one) for one in states.items())]
                await reader.call(server, reads.read(readings))
                self._check(server, marks, states)

        await cluster.once("evaluator:0", look)

    def _check(self, server: int, marks: torch.Tensor, states: Mapping[str, torch.Tensor]) -> None:
        for place, mark in enumerate(marks.tolist()):
            worker, step = divmod(place, self.steps)
            what = f"step {step} of worker:{worker} counts {mark / _MARK:g} times on ps:{server}"
            self.world.require(mark == _MARK, what)
        if self.keeps_state:
            for name, state in states.items():
                what = f"ps:{server} has {name} as of {state.item():g} steps of {self.steps}"
                self.world.require(state.item() == self.steps, what)


class _Sent(NamedTuple):
    steps: CheckpointSteps


class _Told:
    """What a `StepCounter` asks of its store.

    Attributes:
        completed: By group, the last synchronous step that is complete.
    """

    def __init__(self, sharing: Sharing, process: Process, worker: int) -> None:
        self.servers, self.pull_mode = _Sent(process.steps), sharing.pull_mode
        self.step_tracker = StepTracker(sharing.consistency, worker, _WORKERS)
        self.step_tracker.add(_OUTER)


class _Counter(StepCounter):
    """A counter that has asked what is complete."""

    complete: Mapping[str, int] = {}

    def completed(self) -> dict[str, int]:
        return {name: step for name, step in self.complete.items() if step}


class _Worker:
    """One process of a worker."""

    def __init__(self, sharing: Sharing, process: Process) -> None:
        self._sharing, self._process = sharing, process
        self._number = int(process.name.partition(":")[2])
        told: Any = _Told(sharing, process, self._number)
        self._tracker: StepTracker = told.step_tracker
        addresses = [f"host{one}:1" for one in range(_WORKERS)]
        membership = Membership(ClusterSpec({"worker": addresses}), "worker", self._number)
        self._counter = _Counter(membership, told, WorkerStates(membership, told))
        self._is_sync = self._tracker.is_synchronous()
        # By server: its values here, with the local steps since the last share, and without; and
        # the steps that the worker's own optimizer has counted for them.
        servers = range(sharing.num_servers)
        self._own = {server: sharing.zeros() for server in servers}
        self._base = {server: sharing.zeros() for server in servers}
        self._counts = {server: torch.zeros(1) for server in servers}

    async def train(self) -> None:
        """Take the local steps that are left, and share what is due."""
        sharing, counter = self._sharing, self._counter
        await self._go_on()
        await self._adopt()
        await self._take_kept_state()
        for number in counter.steps(sharing.steps, None):
            counter.begin_local_step()
            for server in self._own:
                self._own[server][self._number * sharing.steps + number] += _MARK
                self._counts[server] += 1
            await self._process.idle()
            await asyncio.sleep(sharing.chance.choice((0.0, 0.0, 3.0)))
            if not (number + 1) % sharing.every:
                await self._share(number + 1)
        sharing.world.require(counter.position == sharing.steps, "a loop has left steps out")

    async def _go_on(self) -> None:
        """Learn how far the process before was."""
        process, counter = self._process, self._counter
        if self._is_sync:
            await self._end_predecessors()
            groups = await process.call(0, coordination.describe())
            before = self._tracker.committed_before
            counter.complete = {one.group: max(one.completed, before(one.group)) for one in groups}
        answers = await process.on_all(checkpoints.list_restored)
        self._sharing.world.require(not half_restored(dict(enumerate(answers))), "half restored")
        if not counter.resume(answers):
            counter.load_state_dict(0)
        counter.is_resumed = counter.has_local = True
        process.note(f"goes on after step {counter.position}")

    async def _end_predecessors(self) -> None:
        """As `Contributions.settle`."""
        answers = await self._process.on_all(coordination.list_committed)
        committed = [
            {one.group: one.step for one in answer if one.worker == self._number}
            for answer in answers
        ]
        newest = max(each.get(_OUTER, 0) for each in committed)
        for server in (*range(1, len(committed)), 0):
            if committed[server].get(_OUTER, 0) < newest:
                mark = StepMark(group=_OUTER, step=newest)
                with suppress(UnstagedContributionError):
                    await self._process.call(server, updates.commit(mark, _WAIT_SECONDS, True))
                    committed[server][_OUTER] = newest
        self._tracker.note_committed(committed[0])

    async def _share(self, steps: int) -> None:
        """As `LocalSteps` does it."""
        counter, world = self._counter, self._sharing.world
        with counter.sharing() as is_again:
            if not is_again and self._sharing.keeps_state:
                for count in self._counts.values():
                    what = f"{self._process.name} has a state of {count.item():g} steps of {steps}"
                    world.require(count.item() == steps, what)
            if not counter.has_contributed(_OUTER):
                await self._push()
            await self._adopt()
            if self._sharing.keeps_state:
                await self._keep_state()
            if is_again:
                await self._take_kept_state()
        self._process.note(f"has shared {steps} steps" + (" again" if is_again else ""))

    async def _push(self) -> None:
        begins = self._tracker.begins()
        grants = await self._process.call(0, coordination.begin(begins, _WAIT_SECONDS))
        (permit,) = self._tracker.granted(begins, grants)
        contribution = self._contribution(permit.step) if self._is_sync else None
        await together(self._pushed(server, contribution) for server in self._own)
        if contribution is not None:
            for server in (*range(1, len(self._own)), 0):
                await self._process.call(server, updates.commit(contribution.step, _WAIT_SECONDS))
            self._tracker.count(contribution.step)
        self._tracker.finish(_OUTER, permit.step)

    def _contribution(self, step: int) -> Contribution:
        return Contribution(
            step=StepMark(group=_OUTER, step=step),
            worker=self._number,
            num_workers=_WORKERS,
            replicas=1,
            reduction=REDUCTION_SUM,
        )

    async def _pushed(self, server: int, contribution: Contribution | None) -> None:
        difference = self._sharing.encoded(self._base[server] - self._own[server])
        gradients = [SentGradient(_VALUE, difference, 0)]
        request = updates.step(self._sharing.outer, gradients, contribution)
        await self._process.call(server, request)

    async def _adopt(self) -> None:
        for server, own in self._own.items():
            request = reads.read([Reading(_VALUE, own)], self._tracker.after(_OUTER), _WAIT_SECONDS)
            await self._process.call(server, request)
            self._base[server].copy_(own)

    async def _keep_state(self) -> None:
        for server, count in self._counts.items():
            writing = Writing(_slot(self._number), ASSIGN_MODE_SET, count.clone())
            await self._process.call(server, variables.assign([writing]))

    async def _take_kept_state(self) -> None:
        if self._sharing.keeps_state:
            for server, count in self._counts.items():
                reading = Reading(_slot(self._number), count)
                mark = self._tracker.after(_OUTER)
                await self._process.call(server, reads.read([reading], mark, _WAIT_SECONDS))
