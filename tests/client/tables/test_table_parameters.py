"""Other uses of a parameter whose values are on servers."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

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


def in_place(write: Callable[[Any], object]) -> Callable[[nn.Embedding], object]:
    def without_gradients(table: nn.Embedding) -> None:
        with torch.no_grad():
            write(table.weight)

    return without_gradients


def added_to_a_row(table: nn.Embedding) -> None:
    row = table.weight.data[0]
    row += 5.0


WRITES: dict[str, Callable[[nn.Embedding], object]] = {
    "reset": lambda table: table.reset_parameters(),
    "initialised": lambda table: nn.init.uniform_(table.weight),
    "truncated": lambda table: nn.init.trunc_normal_(table.weight, std=0.1),
    "orthogonal": lambda table: nn.init.orthogonal_(table.weight),
    "sparse": lambda table: nn.init.sparse_(table.weight, 0.5),
    "eye": lambda table: nn.init.eye_(table.weight),
    "a row": lambda table: table.weight.data[2].zero_(),
    "added": added_to_a_row,
    "assigned": in_place(lambda weight: weight[1:3].__setitem__(0, 7.0)),
    "flat": in_place(lambda weight: weight.view(-1)[3:6].fill_(5.0)),
    "transposed": in_place(lambda weight: weight.T.copy_(values().T)),
    "pieces": in_place(lambda weight: [one.fill_(n) for n, one in enumerate(weight.chunk(2))]),
    "one of several": in_place(lambda weight: weight.unbind()[1].fill_(9.0)),
    "out": lambda table: torch.clamp(table.weight.data, 0, 1, out=table.weight.data),
    "a list": in_place(lambda weight: torch._foreach_mul_([weight], 0.5)),
    "normalised": lambda table: nn.functional.normalize(table.weight.data, out=table.weight.data),
    "dropped": in_place(lambda weight: nn.functional.dropout(weight, 0.5, True, True)),
}


@pytest.mark.parametrize("name", WRITES)
def test_whatever_torch_writes_in_place_is_written(
    strategy: ParameterServerStrategy, name: str
) -> None:
    with strategy.scope():
        ours = nn.Embedding(ROWS, 3, padding_idx=1, sparse=True)
    theirs = nn.Embedding(ROWS, 3, padding_idx=1)
    theirs.load_state_dict(ours.state_dict())
    for table in (ours, theirs):
        torch.manual_seed(5)
        WRITES[name](table)
    assert torch.equal(ours(ALL), theirs(ALL))


def test_a_view_that_was_taken_long_ago_leaves_other_rows_as_they_are(table: nn.Embedding) -> None:
    row = table.weight.data[0]
    with torch.no_grad():
        table.weight.copy_(values())
    row.mul_(2.0)
    expected = values()
    expected[0] *= 2.0
    assert torch.equal(table(ALL), expected)
    assert torch.equal(row, expected[0])


def test_what_cannot_be_followed_is_refused(table: nn.Embedding) -> None:
    recorded, before = table.weight[0], table(ALL)
    with torch.no_grad():
        first, second = table.weight[0], table.weight[1]
        for write in (
            lambda: recorded.fill_(0.0),
            lambda: torch._foreach_zero_([first, second]),
            lambda: nn.functional.dropout(first, 1.0, True, True),
        ):
            with pytest.raises(InvalidTypeError, match="in a way that cannot be followed"):
                write()
    with pytest.raises(InvalidTypeError, match="requires gradients is written"):
        first.fill_(0.0)
    with pytest.raises(ValueError, match="read-only"):
        table.weight.data.numpy()[0] = 0.0
    assert torch.equal(table(ALL), before)


def test_a_part_of_one_table_may_start_another(
    strategy: ParameterServerStrategy, table: nn.Embedding
) -> None:
    before = table(ALL)
    with strategy.scope():
        other = nn.Embedding(3, 3)
        other.weight = nn.Parameter(table.weight.data[:3])
    with torch.no_grad():
        other.weight.fill_(7.0)
    assert torch.equal(other(ALL[:3]), torch.full((3, 3), 7.0))
    assert torch.equal(table(ALL), before)


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
