"""Lookups in many tables at once: what each finds, and where its gradient goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import stratagem
from stratagem import (
    DistributedOptimizer,
    ParameterServerStrategy,
    RowIndexError,
)
from tests.client.clusters import running
from tests.full import examples

SIZES = (3, 40_000, 12, 40_000)


class Tables(nn.Module):
    """Tables of two dimensions; those of many rows are on two servers, the others on one."""

    def __init__(self, embedding: Any) -> None:
        super().__init__()
        dims = (4, 2, 4, 4)
        tables = [embedding(rows, dim) for rows, dim in zip(SIZES, dims, strict=True)]
        self.tables: Any = nn.ModuleList(tables)

    def loss(self, ids: Sequence[torch.Tensor], scale: float = 1.0) -> torch.Tensor:
        """Return a number to which each lookup contributes in its own way."""
        found = [table(of) for table, of in zip(self.tables, ids, strict=True)]
        weights = torch.linspace(-scale, 2 * scale, sum(each.numel() for each in found))
        joined = torch.cat([each.flatten() for each in found])
        return (joined * weights).sum() + (joined * joined).sum()


@pytest.fixture(scope="module")
def strategy() -> Iterator[ParameterServerStrategy]:
    with running(num_servers=2) as cluster, cluster.strategy() as strategy:
        yield strategy


def sparse(rows: int, dim: int) -> nn.Embedding:
    return nn.Embedding(rows, dim, sparse=True)


def pair(strategy: ParameterServerStrategy) -> tuple[Tables, Tables]:
    """Tables on servers, and equal ones of torch."""
    with strategy.scope():
        ours = Tables(stratagem.nn.Embedding)
    theirs = Tables(sparse)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def all_ids(numbers: Sequence[int]) -> list[torch.Tensor]:
    """Ids for each table, some of them several times, in the shapes that lookups come in."""
    each = torch.tensor(numbers)
    return [each % SIZES[0], (each * 7919 % SIZES[1]).int(), each[:1] % SIZES[2], each.view(1, -1)]


@given(steps=st.lists(st.lists(st.integers(0, 39_999), min_size=1, max_size=9), max_size=4))
@settings(max_examples=examples(25), deadline=None)
@pytest.mark.parametrize("prefetched", [True, False])
def test_training_gives_the_rows_that_torch_gives(
    strategy: ParameterServerStrategy, prefetched: bool, steps: list[list[int]]
) -> None:
    ours, theirs = pair(strategy)
    optimizer = DistributedOptimizer(torch.optim.Adagrad(ours.parameters(), 0.1))
    local = torch.optim.Adagrad(theirs.parameters(), 0.1)

    def step(ids: list[torch.Tensor]) -> torch.Tensor:
        if prefetched:
            stratagem.nn.prefetch(zip(ours.tables, ids, strict=True))
        optimizer.zero_grad()
        loss = ours.loss(ids)
        loss.backward()
        optimizer.step()
        return loss

    for numbers in steps:
        ids = all_ids(numbers)
        local.zero_grad()
        expected = theirs.loss(ids)
        expected.backward()
        # torch's Adagrad would say that it checks none.
        with torch.sparse.check_sparse_tensor_invariants(False):
            local.step()
        assert torch.equal(strategy.run(step, args=(ids,)), expected)
    for mine, other in zip(ours.tables, theirs.tables, strict=True):
        assert torch.equal(mine.weight.detach(), other.weight.detach())
    strategy.forget(ours, optimizer)


def test_a_lookup_that_no_loss_uses_has_no_gradient(strategy: ParameterServerStrategy) -> None:
    ours, _ = pair(strategy)
    ids = torch.tensor([1, 2, 1])

    def replica() -> None:
        stratagem.nn.prefetch([(table, ids) for table in ours.tables])
        found = [table(ids) for table in ours.tables]
        found[1].sum().backward()
        (found[3].sum() + found[1].new_ones(())).backward()

    strategy.run(replica)
    gradients = [table.weight.grad for table in ours.tables]
    assert [grad is None for grad in gradients] == [True, False, True, False]
    assert gradients[3].to_dense()[:3].tolist() == [[0.0] * 4, [2.0] * 4, [1.0] * 4]


def test_rows_that_only_an_unused_lookup_has_stay_out_of_the_gradient(
    strategy: ParameterServerStrategy,
) -> None:
    ours, _ = pair(strategy)
    table = ours.tables[1]

    def replica() -> None:
        used, unused = torch.tensor([5, 7, 5]), torch.tensor([7, 9])
        stratagem.nn.prefetch([(table, used), (table, unused)])
        table(unused)
        table(used).sum().backward()

    strategy.run(replica)
    rows = table.weight.grad.coalesce().indices()[0]
    assert rows.tolist() == [5, 7]


def test_a_lookup_may_be_changed_in_place(strategy: ParameterServerStrategy) -> None:
    ours, _ = pair(strategy)
    table, ids = ours.tables[3], torch.tensor([1, 1])

    def replica() -> tuple[torch.Tensor, torch.Tensor]:
        stratagem.nn.prefetch([(table, ids), (table, ids)])
        first = table(ids)
        first.mul_(0.0)
        second = table(ids)
        second.sum().backward()
        return first, second

    first, second = strategy.run(replica)
    assert torch.equal(first, torch.zeros(2, 4))
    assert torch.equal(second, table.weight.detach()[ids])
    assert table.weight.grad.to_dense()[1].tolist() == [2.0] * 4


def test_ids_that_were_written_since_are_looked_up_anew(strategy: ParameterServerStrategy) -> None:
    ours, _ = pair(strategy)
    table = ours.tables[3]

    def replica() -> torch.Tensor:
        ids = torch.tensor([1, 2])
        memory = ids.numpy()
        stratagem.nn.prefetch([(table, ids)])
        memory[0] = 30_000
        found: torch.Tensor = table(ids)
        return found

    assert torch.equal(strategy.run(replica), table.weight.detach()[[30_000, 2]])


def test_a_gradient_may_be_scaled_or_replaced_before_a_step(
    strategy: ParameterServerStrategy,
) -> None:
    ours, theirs = pair(strategy)
    optimizer = DistributedOptimizer(torch.optim.SGD(ours.parameters(), 1.0))
    local = torch.optim.SGD(theirs.parameters(), 1.0)
    ids = all_ids([1, 2, 39_999])

    def scale(tables: Tables) -> None:
        tables.tables[0].weight.grad.mul_(0.5)
        tables.tables[1].weight.grad = 3.0 * tables.tables[1].weight.grad
        tables.tables[3].weight.grad = None

    def step() -> None:
        stratagem.nn.prefetch(zip(ours.tables, ids, strict=True))
        optimizer.zero_grad()
        ours.loss(ids).backward()
        scale(ours)
        optimizer.step()

    for _ in range(2):
        strategy.run(step)
        local.zero_grad()
        theirs.loss(ids).backward()
        scale(theirs)
        local.step()
    for mine, other in zip(ours.tables, theirs.tables, strict=True):
        torch.testing.assert_close(mine.weight.detach(), other.weight.detach())


def test_gradients_of_two_passes_are_added(strategy: ParameterServerStrategy) -> None:
    ours, theirs = pair(strategy)
    optimizer = DistributedOptimizer(torch.optim.SGD(ours.parameters(), 1.0))
    batches = all_ids([1, 2, 39_999]), all_ids([2, 5])

    def step() -> None:
        optimizer.zero_grad()
        for ids in batches:
            stratagem.nn.prefetch(zip(ours.tables, ids, strict=True))
            ours.loss(ids).backward()
        optimizer.step()

    strategy.run(step)
    local = torch.optim.SGD(theirs.parameters(), 1.0)
    for ids in batches:
        theirs.loss(ids).backward()
    local.step()
    for mine, other in zip(ours.tables, theirs.tables, strict=True):
        torch.testing.assert_close(mine.weight.detach(), other.weight.detach())


def test_a_frozen_table_is_prefetched_with_others(strategy: ParameterServerStrategy) -> None:
    ours, _ = pair(strategy)
    ours.tables[1].weight.requires_grad_(False)
    ids = [torch.tensor([1])] * 4

    def replica() -> list[bool]:
        stratagem.nn.prefetch(zip(ours.tables, ids, strict=True))
        found = [table(of) for table, of in zip(ours.tables, ids, strict=True)]
        return [each.requires_grad for each in found]

    assert strategy.run(replica) == [True, False, True, True]


def test_a_detached_weight_is_looked_up_beside_its_own(strategy: ParameterServerStrategy) -> None:
    ours, _ = pair(strategy)
    table, ids = ours.tables[3], torch.tensor([4, 4, 39_999])

    def replica() -> list[bool]:
        stratagem.nn.prefetch([(table, ids), (table.weight.data, ids)])
        frozen = functional.embedding(ids, table.weight.data)
        trained = table(ids)
        assert torch.equal(frozen, trained)
        return [frozen.requires_grad, trained.requires_grad]

    assert strategy.run(replica) == [False, True]


@pytest.mark.parametrize("bad", [-1, SIZES[2], 2**62])
def test_rows_that_a_table_has_not_are_refused_by_its_name(
    strategy: ParameterServerStrategy, bad: int
) -> None:
    ours, _ = pair(strategy)
    ids = [torch.tensor([1])] * 2 + [torch.tensor([0, bad]), torch.tensor([1])]

    def replica() -> None:
        stratagem.nn.prefetch(zip(ours.tables, ids, strict=True))

    with pytest.raises(RowIndexError, match=r"tables\.2\.weight.*12 rows"):
        strategy.run(replica)


def test_nothing_may_be_prefetched(strategy: ParameterServerStrategy) -> None:
    ours, _ = pair(strategy)
    empty = torch.empty(0, 3, dtype=torch.int64)

    def replica() -> torch.Size:
        stratagem.nn.prefetch([])
        stratagem.nn.prefetch([(ours.tables[0], empty)])
        found = ours.tables[0](empty)
        found.sum().backward()
        shape: torch.Size = found.shape
        return shape

    assert strategy.run(replica) == (0, 3, 4)
    assert ours.tables[0].weight.grad._nnz() == 0


def test_keys_and_rows_are_prefetched_together(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        keyed, numbered = stratagem.nn.DynamicEmbedding(4), stratagem.nn.Embedding(40_000, 4)
    modules = nn.ModuleList([keyed, numbered])
    optimizer = DistributedOptimizer(torch.optim.SGD(modules.parameters(), 1.0))
    keys = torch.tensor([2**62, -5, 7, -5, -(2**62)])
    rows = torch.tensor([1, 39_999, 1])

    def step(weight: float) -> tuple[torch.Tensor, torch.Tensor]:
        stratagem.nn.prefetch([(keyed, keys), (numbered, rows)])
        found = keyed(keys), numbered(rows)
        optimizer.zero_grad()
        (weight * found[0].sum() + found[1].sum()).backward()
        optimizer.step()
        return found

    before = strategy.run(step, args=(2.0,))
    after = strategy.run(step, args=(2.0,))
    torch.testing.assert_close(
        before[0] - after[0], torch.tensor([2.0, 4.0, 2.0, 4.0, 2.0]).unsqueeze(1).expand(5, 4)
    )
    torch.testing.assert_close(
        before[1] - after[1], torch.tensor([[2.0], [1.0], [2.0]]).expand(3, 4)
    )
