"""Other uses of a parameter whose values are on servers."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import stratagem
from stratagem import (
    ContextError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    ParameterServerStrategy,
)
from tests.client.clusters import Cluster, running

ROWS = 6
ALL = torch.arange(ROWS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(num_servers=2, num_workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def strategy(cluster: Cluster) -> Iterator[ParameterServerStrategy]:
    with cluster.strategy() as strategy:
        yield strategy


@pytest.fixture(params=[nn.Embedding, stratagem.nn.Embedding])
def table(request: pytest.FixtureRequest, strategy: ParameterServerStrategy) -> nn.Embedding:
    with strategy.scope():
        table: nn.Embedding = request.param(ROWS, 3, sparse=True)
    return table


def values() -> torch.Tensor:
    return torch.arange(ROWS * 3.0).reshape(ROWS, 3)


def test_a_state_dict_has_the_values(table: nn.Embedding) -> None:
    assert torch.equal(table.state_dict()["weight"], table(ALL))
    assert type(table.state_dict()["weight"]) is torch.Tensor


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_can_be_loaded(
    strategy: ParameterServerStrategy, table: nn.Embedding, assign: bool
) -> None:
    parameter = table.weight
    table.load_state_dict({"weight": values()}, assign=assign)
    strategy.refresh()
    assert torch.equal(table(ALL), values())
    assert table.weight is parameter


def test_values_can_be_written_in_place(table: nn.Embedding) -> None:
    with torch.no_grad():
        table.weight.copy_(values())
        table.weight[2] = 0
        table.weight.mul_(2)
    table.weight.data.add_(1)
    nn.init.constant_(table.weight.data[:0], 9.0)
    expected = values().index_fill(0, torch.tensor([2]), 0) * 2 + 1
    assert torch.equal(table(ALL), expected)
    table.weight.data = values()
    assert torch.equal(table(ALL), values())
    with pytest.raises(InvalidTypeError, match="requires gradients is written"):
        table.weight.zero_()


def test_replicas_and_other_workers_do_not_write_it(
    cluster: Cluster, strategy: ParameterServerStrategy, table: nn.Embedding
) -> None:
    def write() -> None:
        with torch.no_grad():
            table.weight.zero_()

    with pytest.raises(ContextError, match=r"'weight.*written in a replica"):
        strategy.run(write)


def test_other_values_than_the_chief_writes_are_refused() -> None:
    with running(num_workers=2) as cluster, cluster.strategy(0) as chief:
        with chief.scope():
            written = stratagem.nn.Embedding(ROWS, 3)
        with cluster.strategy(1, peer_seconds=0.2) as worker:
            with worker.scope():
                seen = stratagem.nn.Embedding(ROWS, 3)
            before = written(ALL)
            with torch.no_grad():
                seen.weight.copy_(values())
            for look in (lambda: seen(ALL), worker.refresh):
                with pytest.raises(FailedPreconditionError, match="only in the chief"):
                    look()
            assert torch.equal(written(ALL), before)


def test_copies_and_pickles_are_plain(table: nn.Embedding) -> None:
    buffer = io.BytesIO()
    torch.save(table, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    for other in (copy.deepcopy(table), loaded):
        assert type(other.weight) is nn.Parameter
        assert torch.equal(other.weight, table.weight.detach())


def test_it_stays_where_it_is_whatever_the_device(table: nn.Embedding) -> None:
    parameter = table.weight
    assert table.to("cpu", torch.float32).weight is parameter
    with pytest.raises(InvalidTypeError, match=r"is torch.float32 and cannot become"):
        table.half()


def test_it_says_what_it_is(table: nn.Embedding) -> None:
    assert table.weight.shape == (ROWS, 3)
    assert table.weight.numel() == ROWS * 3
    assert len(table.weight) == ROWS
    assert sum(one.numel() for one in table.parameters()) == ROWS * 3
    assert "shape=(6, 3)" in repr(table.weight)


def test_a_table_that_is_too_large_to_read_says_so(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope(meta_above=60):
        table = nn.Embedding(ROWS, 3)
    assert table(ALL).shape == (ROWS, 3)
    for attempt in (
        table.state_dict,
        table.weight.sum,
        lambda: copy.copy(table.weight),
    ):
        with pytest.raises(InvalidArgumentError, match=r"more than the 60 bytes of"):
            attempt()
