"""Workers step variables by an optimizer; a local one that takes the same steps is the oracle."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from stratagem._ps_client.requests import reads, updates, variables
from stratagem._ps_client.requests.reads import Reading, following
from stratagem._ps_client.requests.updates import SentGradient
from stratagem_proto.programs.optimizers import OPTIMIZERS, SlotName, values_of
from stratagem_proto.programs.update_programs import encode_values
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from tests.simulation.cluster import Cluster, Process
from tests.simulation.programs.adding import spec
from tests.simulation.programs.program import Program
from tests.simulation.world import World

_VARIABLE, _SIZE, _WORKERS = "w", 4, 3
_FIRST_VERSION = 1
# Orders of updates without an answer that are tried, before a run is taken for one of too many.
_MOST_ORDERS = 2_000


def _adam(parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.1)


def _momentum(parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def _adagrad(parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, lr=0.1)


_OPTIMIZERS = (_adam, _momentum, _adagrad)


class Values(NamedTuple):
    """The variable and its slots after some updates."""

    variable: torch.Tensor
    slots: dict[str, torch.Tensor]


@dataclass
class _Server:
    """What is known of one server's variable.

    Attributes:
        gradients: All that were sent, by number.
        order: Which update made a version, as far as that is known.
        unordered: Updates that were applied, in versions that nobody was told.
        values: What was read of versions.
    """

    gradients: list[torch.Tensor] = field(default_factory=list)
    order: dict[int, int] = field(default_factory=dict)
    unordered: set[int] = field(default_factory=set)
    values: dict[int, torch.Tensor] = field(default_factory=dict)


class Optimizing(Program):
    """Each worker sends gradients of its own, and reads what comes of those of all."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._optimizer = self.chance.choice(_OPTIMIZERS)
        self._servers = [_Server() for _ in range(self.num_servers)]
        local = self._optimizer([torch.zeros(_SIZE)])
        self._name = type(local).__name__
        group = encode_values(values_of(OPTIMIZERS[self._name], local.param_groups[0]))
        self._program = OptimizerProgram(name=self._name, class_name=self._name, groups=[group])

    async def prepare(self, cluster: Cluster) -> None:
        async def create(chief: Process) -> None:
            for server in range(self.num_servers):
                zeros = torch.zeros(_SIZE)
                await chief.call(server, variables.create([spec(_VARIABLE, zeros)], [zeros]))

        await cluster.once("chief:0", create)

    async def run(self, cluster: Cluster) -> None:
        lives = (
            cluster.run_until_done(f"worker:{worker}", _Optimizer(self).optimize)
            for worker in range(_WORKERS)
        )
        await asyncio.gather(*lives)

    async def step(self, process: Process, server: int) -> None:
        """Send one gradient, perhaps with a read of what comes after it."""
        known = self._servers[server]
        number = len(known.gradients)
        gradient = torch.tensor([self.chance.uniform(-1, 1) for _ in range(_SIZE)])
        known.gradients.append(gradient)
        request = updates.step(self._program, [SentGradient(_VARIABLE, gradient, 0)])
        if self.chance.random() < 0.5:
            (version,) = await process.call(server, request)
            there = known.order.setdefault(version, number)
            self.world.require(there == number, f"two updates make version {version}")
            return
        into = torch.zeros(_SIZE)
        fused = reads.and_read(request, following([Reading(_VARIABLE, into)]), [])
        answer = await process.call(server, fused)
        known.unordered.add(number)
        self._note_value(server, answer.versions[0], into)

    async def read(self, process: Process, server: int) -> int:
        """Read a server's variable; return its version."""
        into = torch.zeros(_SIZE)
        (version,) = await process.call(server, reads.read([Reading(_VARIABLE, into)]))
        self._note_value(server, version, into)
        return version

    def _note_value(self, server: int, version: int, value: torch.Tensor) -> None:
        known = self._servers[server].values.setdefault(version, value)
        what = f"version {version} of ps:{server} has two values"
        self.world.require(torch.equal(known, value), what)

    async def judge(self, cluster: Cluster) -> None:
        async def look(reader: Process) -> None:
            for number in range(self.num_servers):
                last = await self.read(reader, number)
                slots = await self._read_slots(reader, number)
                found = Values(self._servers[number].values[last], slots)
                self._check(number, last, found)

        await cluster.once("evaluator:0", look)

    async def _read_slots(self, reader: Process, server: int) -> dict[str, torch.Tensor]:
        listed = await reader.call(server, variables.list_variables())
        found = {}
        for info in listed.variables:
            parts = SlotName.parse(info.spec.name)
            if parts is not None and info.spec.tensor.shape:
                found[parts.key] = torch.zeros(_SIZE)
                reading = Reading(info.spec.name, found[parts.key])
                await reader.call(server, reads.read([reading]))
        return found

    def _check(self, number: int, last: int, found: Values) -> None:
        known = self._servers[number]
        open_ends = set(range(len(known.gradients))) - set(known.order.values())
        gaps = last - _FIRST_VERSION - len(known.order)
        required = len(known.unordered)
        what = f"{gaps} updates of ps:{number} have no version, of which {required} were answered"
        self.world.require(required <= gaps <= len(open_ends), what)
        orders = self._orders(known, [], open_ends, last)
        for tries, order in enumerate(orders):
            values = self._after(known, order)
            if tries == _MOST_ORDERS:
                self.world.faults["too many orders"] += 1
                return
            if self._agree(values, found) and known.unordered <= set(order):
                return
        what = f"no order of updates makes the variable and the slots of ps:{number}"
        self.world.require(False, what)

    def _orders(
        self, known: _Server, before: list[int], open_ends: set[int], last: int
    ) -> Iterator[list[int]]:
        """Yield the orders of updates that explain what was read."""
        version = _FIRST_VERSION + len(before)
        if version > _FIRST_VERSION and version in known.values:
            value = self._after(known, before).variable
            if not torch.equal(value, known.values[version]):
                return
        if version == last:
            yield before
            return
        told = known.order.get(version + 1)
        for one in sorted(open_ends) if told is None else [told]:
            yield from self._orders(known, [*before, one], open_ends - {one}, last)

    def _after(self, known: _Server, order: Sequence[int]) -> Values:
        """Take the same steps here."""
        parameter = torch.zeros(_SIZE)
        optimizer = self._optimizer([parameter])
        for number in order:
            parameter.grad = known.gradients[number].clone()
            optimizer.step()
        # Some optimizers make their state before the first step, and servers with it.
        state = optimizer.state[parameter] if order else {}
        return Values(parameter, {key: each for key, each in state.items() if each.ndim})

    def _agree(self, expected: Values, found: Values) -> bool:
        slots = {key: each for key, each in expected.slots.items() if each is not None}
        return (
            torch.equal(expected.variable, found.variable)
            and slots.keys() == found.slots.keys()
            and all(torch.equal(each, found.slots[key]) for key, each in slots.items())
        )


class _Optimizer:
    """The program of one worker."""

    def __init__(self, optimizing: Optimizing) -> None:
        self._optimizing = optimizing
        self._left = optimizing.chance.randint(2, 5)

    async def optimize(self, process: Process) -> None:
        """Send gradients until there are none left."""
        optimizing, chance = self._optimizing, self._optimizing.chance
        while self._left > 0:
            self._left -= 1
            with process.steps.step_scope():
                await optimizing.step(process, chance.randrange(optimizing.num_servers))
            if chance.random() < 0.6:
                await optimizing.read(process, chance.randrange(optimizing.num_servers))
            await process.idle()
