"""Rows of several tables, pulled by one request of each server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import (
    DistributedOptimizer,
    ParameterServerStrategy,
    RowIndexError,
    config,
)
from stratagem._ps_client.connection import Connection
from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.transport import Style
from tests.client.clusters import Cluster, running

ROWS, SERVERS = 13_000, 3
IDS = torch.tensor([[5, 12_999, 5], [6000, 1, 9000]])


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(SERVERS) as cluster:
        yield cluster


@pytest.fixture
def model(strategy: ParameterServerStrategy) -> Model:
    with strategy.scope():
        return Model()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], int]:
    """Counts the requests to read that a function sends."""
    start, sent = Connection.start, Counter[str]()

    def counted(self: Connection, request: Request[Any], **how: Style) -> Any:
        sent[request.method] += 1
        return start(self, request, **how)

    def of(function: Callable[[], object]) -> int:
        before = sent["Read"]
        function()
        return sent["Read"] - before

    monkeypatch.setattr(Connection, "start", counted)
    return of


class Model(nn.Module):
    """Sums rows of five tables, one of which has keys."""

    def __init__(self) -> None:
        super().__init__()
        tables = [stratagem.nn.Embedding(ROWS, 16) for _ in range(4)]
        self.tables = nn.ModuleList([*tables, stratagem.nn.DynamicEmbedding(16)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.stack([table(ids) for table in self.tables]).sum()

    def prefetch(self, ids: torch.Tensor, direction: int = 1) -> None:
        stratagem.nn.prefetch((table, ids) for table in list(self.tables)[::direction])


def test_lookups_after_it_ask_no_server(
    strategy: ParameterServerStrategy,
    model: Model,
    reads: Callable[[Callable[[], object]], int],
) -> None:
    def step() -> list[int]:
        return [
            reads(lambda: model.prefetch(IDS)),
            reads(lambda: model(IDS)),
            reads(lambda: model(IDS[0])),
            reads(lambda: model.prefetch(IDS.flip(0))),
            reads(lambda: model(torch.tensor([5, 17]))),
        ]

    # Each of the five tables has the new row, or key, on one server.
    assert strategy.run(step) == [SERVERS, 0, 0, 0, 5]


def test_outside_of_replicas_and_of_plain_weights_nothing_is_pulled(
    strategy: ParameterServerStrategy,
    model: Model,
    reads: Callable[[Callable[[], object]], int],
) -> None:
    plain = nn.Embedding(3, 2)

    def pull_plain() -> None:
        ids = torch.tensor([2])
        stratagem.nn.prefetch([(plain, ids), (plain.weight, ids)])

    assert reads(lambda: model.prefetch(IDS)) == 0
    assert strategy.run(reads, args=(pull_plain,)) == 0


def test_a_run_that_only_looks_rows_up_reads_nothing_else(
    strategy: ParameterServerStrategy, reads: Callable[[Callable[[], object]], int]
) -> None:
    with strategy.scope():
        table = stratagem.nn.Embedding(ROWS, 16)
    optimizer = DistributedOptimizer(torch.optim.Adagrad(table.parameters()))

    def step() -> None:
        optimizer.zero_grad()
        table(IDS[0, :1]).sum().backward()
        optimizer.step()

    strategy.run(step)
    assert reads(lambda: strategy.run(step)) == 1


@pytest.mark.parametrize("ahead", [True, False])
def test_a_step_is_the_same_with_it_and_without(
    strategy: ParameterServerStrategy, ahead: bool
) -> None:
    with strategy.scope():
        table = stratagem.nn.Embedding(ROWS, 16)
    value = table.weight.detach().clone()
    plain = nn.Embedding.from_pretrained(value, freeze=False, sparse=True)
    adagrad = torch.optim.Adagrad(table.parameters(), lr=0.3)
    optimizer = DistributedOptimizer(adagrad)
    theirs = torch.optim.Adagrad(plain.parameters(), lr=0.3)

    def step(ids: torch.Tensor) -> None:
        if ahead:
            stratagem.nn.prefetch([(table.weight, ids), (table, ids + 1)])
        optimizer.zero_grad()
        (table(ids).sin() * table(ids + 1)).sum().backward()
        optimizer.step()

    for first in (0, 5000, 1):
        ids = torch.arange(first, first + 5000, 7)
        strategy.run(step, args=(ids,))
        theirs.zero_grad()
        (plain(ids).sin() * plain(ids + 1)).sum().backward()
        theirs.step()
    assert torch.equal(table.weight.detach(), plain.weight.detach())


def test_replicas_may_name_their_tables_in_any_order(cluster: Cluster) -> None:
    config.set_logical_cpus(2)
    with cluster.strategy(num_replicas_per_worker=2) as strategy:
        with strategy.scope():
            model = Model()

        def step(direction: int) -> float:
            model.prefetch(IDS, direction)
            value: float = model(IDS).item()
            return value

        directions = stratagem.PerReplica([1, -1])
        for _ in range(20):
            results = strategy.run(step, args=(directions,))
            assert len({*strategy.experimental_local_results(results)}) == 1


def test_rows_that_do_not_exist_are_refused(
    strategy: ParameterServerStrategy, model: Model
) -> None:
    with pytest.raises(RowIndexError, match=r"rows 13000 to 13000 of 'tables.0.wei"):
        strategy.run(model.prefetch, args=(torch.tensor([ROWS]),))
