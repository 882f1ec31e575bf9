"""Looking rows up in tables on servers, in all the ways that torch has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import stratagem
from stratagem import (
    DistributedOptimizer,
    InvalidArgumentError,
    ParameterServerStrategy,
    RowIndexError,
)
from tests.client.clusters import running

ROWS = 12
IDS = torch.tensor([[3, 1, 3], [0, 11, 7]])


@pytest.fixture(scope="module")
def strategy() -> Iterator[ParameterServerStrategy]:
    with running(num_servers=2) as cluster, cluster.strategy() as strategy:
        yield strategy


def table_of(
    strategy: ParameterServerStrategy, kind: type[nn.Module], **options: Any
) -> tuple[Any, Any]:
    """A table on servers, and torch's own that is equal to it."""
    with strategy.scope():
        ours = kind(ROWS, 4, **options)
    theirs = kind.__mro__[1](ROWS, 4, **options)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def assert_same(
    strategy: ParameterServerStrategy,
    tables: tuple[Any, Any],
    *args: Any,
    **kwargs: Any,
) -> None:
    """Check that lookups and their gradients are equal."""
    ours, theirs = tables
    weights = torch.linspace(-1.0, 2.0, 4)

    def replica() -> torch.Tensor:
        found: torch.Tensor = ours(*args, **kwargs)
        (found * weights).sum().backward()
        return found

    expected = theirs(*args, **kwargs)
    (expected * weights).sum().backward()
    assert torch.equal(strategy.run(replica), expected)
    grad = ours.weight.grad
    assert grad.is_sparse
    torch.testing.assert_close(grad.to_dense(), theirs.weight.grad)


@pytest.mark.parametrize("ids", [IDS, IDS.int(), IDS[0, 0], IDS[:, :0]])
@pytest.mark.parametrize("padding_idx", [None, 3, 5, -1])
def test_an_embedding_finds_what_torch_finds(
    strategy: ParameterServerStrategy, ids: torch.Tensor, padding_idx: int | None
) -> None:
    tables = table_of(strategy, stratagem.nn.Embedding, padding_idx=padding_idx)
    assert_same(strategy, tables, ids)


def test_gradients_may_be_scaled_by_frequency(
    strategy: ParameterServerStrategy,
) -> None:
    kind = stratagem.nn.Embedding
    assert_same(strategy, table_of(strategy, kind, scale_grad_by_freq=True), IDS)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding_idx", [None, 3])
def test_a_bag_finds_what_torch_finds(
    strategy: ParameterServerStrategy, mode: str, padding_idx: int | None
) -> None:
    kind = stratagem.nn.EmbeddingBag
    tables = table_of(strategy, kind, mode=mode, padding_idx=padding_idx)
    assert_same(strategy, tables, IDS)


def test_bags_have_offsets(strategy: ParameterServerStrategy) -> None:
    kind = stratagem.nn.EmbeddingBag
    tables = table_of(strategy, kind, mode="sum", include_last_offset=True)
    assert_same(strategy, tables, IDS.flatten(), torch.tensor([0, 2, 2, 6]))
    assert_same(strategy, table_of(strategy, kind), IDS[0].int(), torch.tensor([0, 1]).int())


def test_bags_have_weights_with_gradients(strategy: ParameterServerStrategy) -> None:
    ours, theirs = table_of(strategy, stratagem.nn.EmbeddingBag, mode="sum")
    mine = torch.rand(IDS.shape, requires_grad=True)
    other = mine.detach().clone().requires_grad_()
    strategy.run(lambda: ours(IDS, per_sample_weights=mine).sum().backward())
    theirs(IDS, per_sample_weights=other).sum().backward()
    assert mine.grad is not None
    assert other.grad is not None
    torch.testing.assert_close(mine.grad, other.grad)
    torch.testing.assert_close(ours.weight.grad.to_dense(), theirs.weight.grad)


@pytest.mark.parametrize("ids", [IDS.float() + 0.5, IDS == 1, IDS.tolist()])
def test_rows_are_whole_numbers(strategy: ParameterServerStrategy, ids: Any) -> None:
    """Nothing is rounded to the row of another one."""
    table, _ = table_of(strategy, stratagem.nn.Embedding)
    with pytest.raises(TypeError, match=r"'weight.*' is looked up by a tensor of int"):
        strategy.run(table, args=(ids,))
    with pytest.raises(TypeError, match=r"'weight.*' is looked up by a tensor of int"):
        strategy.run(stratagem.nn.prefetch, args=([(table, ids)],))


def test_gradients_accumulate_over_lookups_and_runs(
    strategy: ParameterServerStrategy,
) -> None:
    ours, theirs = table_of(strategy, stratagem.nn.Embedding)

    def loss(table: nn.Embedding) -> torch.Tensor:
        product: torch.Tensor = table(IDS) * table(IDS.flip(0))
        single: torch.Tensor = table(IDS[0])
        return product.sum() + single.sum()

    for _ in range(2):
        strategy.run(lambda: loss(ours).backward())
        loss(theirs).backward()
    torch.testing.assert_close(ours.weight.grad.to_dense(), theirs.weight.grad)
    ours.zero_grad()
    assert ours.weight.grad is None


def test_a_recomputed_forward_finds_the_same_rows(
    strategy: ParameterServerStrategy,
) -> None:
    ours, theirs = table_of(strategy, stratagem.nn.Embedding)

    def replica() -> None:
        dummy = torch.ones(1, requires_grad=True)

        def block(x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = ours(IDS).square() * x
            return found

        checkpoint(block, dummy, use_reentrant=False).sum().backward()

    strategy.run(replica)
    theirs(IDS).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad.to_dense(), theirs.weight.grad)


def test_without_gradients_there_is_no_graph(
    strategy: ParameterServerStrategy,
) -> None:
    ours, theirs = table_of(strategy, stratagem.nn.Embedding)
    with torch.no_grad():
        assert not strategy.run(ours, args=(IDS,)).requires_grad
    with torch.inference_mode():
        assert torch.equal(ours(IDS), theirs(IDS))
    ours.requires_grad_(False)
    found = strategy.run(ours, args=(IDS,))
    assert torch.equal(found, theirs(IDS))
    assert not found.requires_grad


def test_a_frozen_table_stays_as_it_is(strategy: ParameterServerStrategy) -> None:
    ours, theirs = table_of(strategy, stratagem.nn.Embedding)
    head = torch.ones(4, requires_grad=True)
    ours.requires_grad_(False)
    optimizer = DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=1.0))

    def step() -> None:
        (ours(IDS) * head).sum().backward()
        optimizer.step()

    strategy.run(step)
    assert torch.equal(ours.weight.detach(), theirs.weight.detach())


def test_a_lookup_outside_of_run_finds_the_rows_of_now(
    strategy: ParameterServerStrategy,
) -> None:
    ours, _ = table_of(strategy, stratagem.nn.Embedding)
    optimizer = DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=1.0))
    before = ours(IDS).detach()

    def step() -> None:
        ours(IDS).sum().backward()
        optimizer.step()

    strategy.run(step)
    torch.testing.assert_close(before[1] - ours(IDS)[1], torch.ones(3, 4))


@pytest.mark.parametrize("row", [-1, ROWS])
def test_a_row_that_is_not_there_is_an_index_error(
    strategy: ParameterServerStrategy, row: int
) -> None:
    ours, _ = table_of(strategy, stratagem.nn.Embedding)
    with pytest.raises(RowIndexError, match=f"rows.*{row}.*it has 12 rows"):
        ours(torch.tensor([0, row]))


def test_a_largest_norm_is_refused(strategy: ParameterServerStrategy) -> None:
    with pytest.raises(InvalidArgumentError, match="max_norm would have to write"):
        stratagem.nn.Embedding(3, 3, max_norm=1.0)
    with strategy.scope():
        table = nn.Embedding(3, 3, max_norm=1.0, sparse=True)
    with pytest.raises(InvalidArgumentError, match="max_norm would have to write"):
        table(torch.tensor([1]))


@pytest.mark.parametrize("kind", [nn.Embedding, stratagem.nn.Embedding])
def test_a_table_may_be_used_whole_as_well(
    strategy: ParameterServerStrategy, kind: type[nn.Embedding]
) -> None:
    with strategy.scope():
        ours = kind(ROWS, 4, sparse=True)
    theirs = nn.Embedding.from_pretrained(ours.weight.detach(), freeze=False)

    def loss(table: nn.Embedding) -> torch.Tensor:
        found = functional.linear(table.weight[2:3], table.weight)
        return found.square().sum() + torch.stack([table.weight, table.weight]).sum()

    optimizer = DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.1))
    plain = torch.optim.SGD(theirs.parameters(), lr=0.1)
    strategy.run(lambda: (loss(ours).backward(), optimizer.step()))
    loss(theirs).backward()
    plain.step()
    torch.testing.assert_close(ours.weight.detach(), theirs.weight.detach())
