"""Parameters that replica functions write."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from stratagem import (
    ContextError,
    DistributedOptimizer,
    MirroredStrategy,
    PerReplica,
)
from tests.client.two_replicas import number

pytestmark = pytest.mark.usefixtures("four_cpus")


@pytest.fixture
def strategy() -> MirroredStrategy:
    return MirroredStrategy(["CPU:0", "CPU:1"])


def embedding_in(strategy: MirroredStrategy, **settings: Any) -> nn.Embedding:
    with strategy.scope():
        embedding = nn.Embedding(10, 4, **settings)
        nn.init.constant_(embedding.weight, 1.0)
    return embedding


def copies(strategy: MirroredStrategy, module: nn.Embedding) -> tuple[torch.Tensor, ...]:
    found = strategy.run(lambda: module.weight.detach().clone())
    return strategy.experimental_local_results(found)


ROWS = PerReplica([torch.tensor([1, 2]), torch.tensor([3])])


def test_rows_that_each_replica_scales_down_are_refused(strategy: MirroredStrategy) -> None:
    embedding = embedding_in(strategy, max_norm=1.0)
    sgd = DistributedOptimizer(torch.optim.SGD(embedding.parameters(), 0.1))

    def step(rows: torch.Tensor) -> None:
        embedding(rows).sum().backward()
        sgd.step()

    with pytest.raises(ContextError, match=r"'weight' was written in replicas.*max_norm"):
        strategy.run(step, (ROWS,))
    first, second = copies(strategy, embedding)
    assert torch.equal(first, second)


def test_also_without_a_step(strategy: MirroredStrategy) -> None:
    embedding = embedding_in(strategy, max_norm=1.0)
    strategy.run(embedding, (ROWS,))
    with pytest.raises(ContextError, match="'weight' was written in replicas"):
        strategy.run(embedding, (ROWS,))


def test_what_all_replicas_write_alike_is_theirs(strategy: MirroredStrategy) -> None:
    embedding = embedding_in(strategy)
    sgd = DistributedOptimizer(torch.optim.SGD(embedding.parameters(), 0.5))

    def step(rows: torch.Tensor) -> None:
        sgd.zero_grad()
        embedding(rows).sum().backward()
        sgd.step()
        with torch.no_grad():
            embedding.weight.clamp_(0.9, 1.0)

    for _ in range(3):
        strategy.run(step, (ROWS,))
    first, second = copies(strategy, embedding)
    assert torch.equal(first, second) and first.min() == pytest.approx(0.9)


def test_what_has_diverged_may_be_written_alike(strategy: MirroredStrategy) -> None:
    embedding = embedding_in(strategy)
    sgd = DistributedOptimizer(torch.optim.SGD(embedding.parameters(), 0.5))

    def step(rows: torch.Tensor) -> None:
        embedding(rows).sum().backward()
        nn.init.constant_(embedding.weight, torch.nan)
        sgd.step()

    strategy.run(step, (ROWS,))
    assert all(each.isnan().all() for each in copies(strategy, embedding))


def test_one_replica_cannot_write_alone(strategy: MirroredStrategy) -> None:
    embedding = embedding_in(strategy)
    sgd = DistributedOptimizer(torch.optim.SGD(embedding.parameters(), 0.5))

    def step(rows: torch.Tensor) -> None:
        embedding(rows).sum().backward()
        if number() == 1:
            with torch.no_grad():
                embedding.weight.zero_()
        sgd.step()

    with pytest.raises(ContextError, match="not alike"):
        strategy.run(step, (ROWS,))
    # It goes on with the first one's.
    with torch.no_grad():
        embedding.weight.fill_(2.0)
    assert all(torch.equal(each, torch.full((10, 4), 2.0)) for each in copies(strategy, embedding))
