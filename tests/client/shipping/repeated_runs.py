"""Runs of one scheduled function, on workers of which some were thought lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any

import torch
from torch import nn

from stratagem import DistributedOptimizer, ParameterServerStrategy, Variable
from stratagem._ps_client.names import RunningClosure, _running
from stratagem.partitioners import FixedShardsPartitioner
from stratagem_proto.v1.session_pb2 import ClosureIdentity
from tests.client.clusters import Cluster
from tests.conftest import TOKEN
from tests.psserver.wire import RawClient

SPACE = b"coordinator 1234"
ROWS = 8

State = Mapping[str, tuple[int, bytes]]


def identity(number: int = 1) -> ClosureIdentity:
    return ClosureIdentity(space=SPACE, number=number)


def strategy_of(cluster: Cluster, worker: int) -> ParameterServerStrategy:
    return cluster.strategy(worker, variable_partitioner=FixedShardsPartitioner(2))


def state_of(cluster: Cluster) -> State:
    """Versions and bytes of all that servers host."""
    found: dict[str, tuple[int, bytes]] = {}
    for address in cluster.servers:
        with RawClient(address, TOKEN) as client:
            client.open()
            found |= client.everything()
    return found


class Program:
    """What a worker has of the variables of all, and the steps of a function."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self._strategy = strategy
        torch.manual_seed(1)
        with strategy.scope():
            self.here = Variable(1.0, name="here")
            self.there = Variable(2.0, name="there")
            self.divided = Variable(torch.arange(ROWS * 2.0).view(ROWS, 2), name="all")
            self._table = nn.Embedding(ROWS, 2, sparse=True)
            self._layer = nn.Linear(2, 1)
        tables, layers = self._table.parameters(), self._layer.parameters()
        self._optimizers = [
            DistributedOptimizer(torch.optim.SparseAdam(tables, lr=0.1)),
            DistributedOptimizer(torch.optim.Adam(layers, lr=0.1, amsgrad=True)),
        ]

    @property
    def steps(self) -> Mapping[str, Callable[[], Any]]:
        """All that a function may do to variables, by what it is."""
        extended = self._strategy.extended
        return {
            "a write": lambda: self.here.assign(5.0),
            "an addition": lambda: self.there.assign_add(1.0),
            "a write of shards": lambda: self.divided.assign_sub(torch.ones(ROWS, 2)),
            "a training step": lambda: self._strategy.run(self._train),
            "an update": lambda: extended.update(self.there, lambda v: v.assign(v * 2 + 1)),
            "another update": lambda: extended.update_non_slot(
                self.here, lambda: self.here.assign_add(self.here)
            ),
            "the last step": lambda: self._strategy.run(self._train),
        }

    def _train(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        ids = torch.tensor([0, 7, 7, 3])
        self._layer(self._table(ids)).square().sum().backward()
        for optimizer in self._optimizers:
            optimizer.step()


class Overlapping:
    """A layer of which a worker sends gradients while their backward pass goes on."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self._strategy = strategy
        with strategy.scope():
            # As large as what is sent at a time.
            self._layer = nn.Linear(1, 1 << 18, bias=False)
            nn.init.zeros_(self._layer.weight)
        sgd = torch.optim.SGD(self._layer.parameters(), lr=1.0)
        self._optimizer = DistributedOptimizer(sgd, overlap=True)

    @property
    def weights(self) -> list[float]:
        self._strategy.refresh()
        return [float(one) for one in self._layer.weight.detach().unique()]

    def step(self) -> None:
        self._strategy.run(self._train)

    def _train(self) -> None:
        self._optimizer.zero_grad()
        self._layer(torch.ones(1, 1)).sum().backward()
        self._optimizer.step()


class Run:
    """One run of function 1 by a worker, step by step."""

    def __init__(self, program: Program) -> None:
        self._steps = list(program.steps.values())
        self._context = copy_context()
        self._context.run(_running.set, RunningClosure(identity()))

    @property
    def over(self) -> bool:
        return not self._steps

    def go_on(self) -> None:
        self._context.run(self._steps.pop(0))

    def finish(self) -> None:
        while not self.over:
            self.go_on()
