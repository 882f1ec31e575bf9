"""Variables of dtypes that torch keeps, and computes little with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from stratagem import (
    DistributedOptimizer,
    IndexedSlices,
    InvalidArgumentError,
    InvalidTypeError,
    OneDeviceStrategy,
    ParameterServerStrategy,
    Variable,
)
from stratagem.partitioners import FixedShardsPartitioner
from tests.client.clusters import running
from tests.full import a_few

FLOATS = [torch.float8_e4m3fn, torch.float8_e5m2]
DTYPES = [*FLOATS, torch.uint16, torch.uint32, torch.uint64]

every_dtype = a_few("dtype", DTYPES, "dtypes differ in size and kind alone", 3, ids=str)
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


@pytest.fixture(params=[None, FixedShardsPartitioner(2)], ids=["whole", "divided"])
def strategy(request: pytest.FixtureRequest) -> Iterator[ParameterServerStrategy]:
    with (
        running(num_servers=2) as cluster,
        cluster.strategy(variable_partitioner=request.param) as strategy,
    ):
        yield strategy


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Six rows, the largest number of the dtype among them."""
    top = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    rows = torch.arange(12.0).reshape(6, 2).to(dtype)
    rows[5] = torch.tensor(top, dtype=dtype)
    return rows


def hosted(strategy: ParameterServerStrategy, dtype: torch.dtype) -> Variable:
    with strategy.scope():
        return Variable(numbers(dtype), name="v", trainable=False)


def are_equal(variable: Variable, expected: torch.Tensor) -> bool:
    found = torch.as_tensor(variable.read_value())
    assert found.dtype == expected.dtype
    return torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


@every_dtype
def test_values_and_rows_are_written_and_read(
    strategy: ParameterServerStrategy, dtype: torch.dtype
) -> None:
    v, rows = hosted(strategy, dtype), numbers(dtype)
    assert are_equal(v, rows)
    v.assign(rows.flip(0))
    assert are_equal(v, rows.flip(0))
    v.scatter_update(IndexedSlices(rows[[1, 5]], torch.tensor([4, 0])))
    expected = rows.flip(0).clone().view(torch.uint8)
    expected[[4, 0]] = rows.view(torch.uint8)[[1, 5]]
    assert are_equal(v, expected.view(dtype))
    found = v.sparse_read(torch.tensor([4, 0, 4]))
    assert found.float().tolist() == rows[[1, 5, 1]].float().tolist()


@every_dtype
def test_checkpoints_have_all_bits(
    strategy: ParameterServerStrategy, dtype: torch.dtype, tmp_path: Path
) -> None:
    v, rows = hosted(strategy, dtype), numbers(dtype)
    strategy.save(tmp_path)
    v.scatter_update(IndexedSlices(rows[5:], torch.tensor([2])))
    strategy.save(tmp_path, incremental=True)
    expected = torch.as_tensor(v.read_value()).clone()
    v.assign(rows.flip(0))
    strategy.restore(tmp_path)
    assert are_equal(v, expected)


@every_dtype
def test_what_torch_does_not_compute_is_refused_and_changes_nothing(
    strategy: ParameterServerStrategy, dtype: torch.dtype
) -> None:
    v, rows = hosted(strategy, dtype), numbers(dtype)
    with pytest.raises(InvalidTypeError, match=rf"'v.*', a {dtype}: .*not implemented"):
        v.assign_add(rows)
    assert are_equal(v, rows)


@every_dtype
def test_rows_of_local_variables_are_written(dtype: torch.dtype) -> None:
    rows = numbers(dtype)
    with OneDeviceStrategy("cpu").scope():
        v = Variable(rows, trainable=False)
    v.scatter_update(IndexedSlices(rows[5:], torch.tensor([0])))
    assert v.float()[0].tolist() == rows[5].float().tolist()


class Quantised(nn.Module):
    """A table of small floats, by a scale that is trained."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(numbers(dtype))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        looked_up: torch.Tensor = self.table(ids)
        return looked_up.float() * self.scale


@every_float
def test_a_frozen_table_is_looked_up_while_its_scale_is_trained(
    strategy: ParameterServerStrategy, dtype: torch.dtype
) -> None:
    with strategy.scope():
        model = Quantised(dtype)
        optimizer = DistributedOptimizer(torch.optim.SGD([model.scale], lr=0.5))

    def step() -> None:
        optimizer.zero_grad()
        model(torch.tensor([0, 1])).sum().backward()
        optimizer.step()

    strategy.run(step)
    assert model.scale.item() == 1 - 0.5 * (0 + 1 + 2 + 3)
    assert model.table.weight.dtype == dtype
    assert model(torch.tensor([1])).tolist() == [[-4.0, -6.0]]


@every_float
def test_optimizers_that_torch_has_not_for_it_are_refused(
    strategy: ParameterServerStrategy, dtype: torch.dtype
) -> None:
    with strategy.scope():
        model = Quantised(dtype)
        model.table.weight.requires_grad_(True)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))

    def step() -> None:
        model.table.weight.float().sum().backward()
        optimizer.step()

    with pytest.raises(InvalidArgumentError, match=f"SGD cannot step a {dtype} parameter"):
        strategy.run(step)
