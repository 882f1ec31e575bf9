"""A model that trains on servers whose versions are followed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from stratagem import DistributedOptimizer, ParameterServerStrategy
from stratagem.nn import DynamicEmbedding, Embedding
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.clusters import Cluster
from tests.conftest import TOKEN
from tests.versions.follower import Follower, contents_of


class Model(nn.Module):
    """A table of 100 rows, one of any keys with room for some dozens, a layer, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.users = Embedding(100, 4)
        self.items = DynamicEmbedding(4, max_bytes=4500)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 1)
        self.idle = nn.Linear(4, 2)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.out(self.norm(self.users(users) + self.items(items)))
        return made


class Training:
    """One program that trains a model on batches of its own."""

    def __init__(self, strategy: ParameterServerStrategy, seed: int = 0) -> None:
        self.strategy, self._random = strategy, torch.Generator().manual_seed(seed)
        with strategy.scope(meta_above=256):
            self.model = Model()
        parameters = [
            parameter
            for name, parameter in self.model.named_parameters()
            if not name.startswith("idle")
        ]
        self.optimizer = DistributedOptimizer(torch.optim.Adam(parameters, lr=0.1))

    def step(self, batch: int = 8) -> None:
        users = torch.randint(0, 100, (batch,), generator=self._random)
        items = torch.randint(0, 1 << 40, (batch,), generator=self._random)

        def replica_step() -> None:
            self.optimizer.zero_grad()
            self.model(users, items).square().mean().backward()
            self.optimizer.step()

        self.strategy.run(replica_step)


def started(stack: ExitStack, task: int, **settings: Any) -> ParameterServer:
    return stack.enter_context(ParameterServer(ServerSettings(task=task, token=TOKEN, **settings)))


@contextmanager
def cluster(**settings: Any) -> Iterator[tuple[list[ParameterServer], Cluster]]:
    with ExitStack() as stack:
        servers = [started(stack, task, **settings) for task in range(2)]
        yield servers, Cluster([one.address for one in servers], 1)


def followers(servers: list[ParameterServer]) -> list[Follower]:
    return [Follower(server.address) for server in servers]


def require_equal(servers: list[ParameterServer], following: list[Follower]) -> None:
    for server, one in zip(servers, following, strict=True):
        hosted = contents_of(server)
        assert hosted == {name: one.contents[name] for name in hosted}
