"""Variables with a copy on each device: writing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    IndexedSlices,
    Mirrored,
    MirroredStrategy,
    PerReplica,
    Variable,
    VariableAggregation,
)
from tests.client.two_replicas import number, shared

SUM, MEAN = VariableAggregation.SUM, VariableAggregation.MEAN
FIRST, NONE = VariableAggregation.ONLY_FIRST_REPLICA, VariableAggregation.NONE

pytestmark = pytest.mark.usefixtures("four_cpus")


@pytest.fixture
def strategy() -> MirroredStrategy:
    return MirroredStrategy(["CPU:0", "CPU:1"])


def copies_of(variable: Variable) -> list[Any]:
    return [copy.numpy().tolist() for copy in variable.values]


@pytest.mark.parametrize("aggregation", list(VariableAggregation))
@pytest.mark.spec("VWR-1", "VWR-15", "VWR-20", "VWR-22", "VWR-23")
def test_a_write_outside_of_replicas_goes_to_every_copy(
    strategy: MirroredStrategy, aggregation: VariableAggregation
) -> None:
    """In scope or not."""
    variable = shared(strategy, 1.0, aggregation)
    written = variable.assign(5.0)
    assert isinstance(written, Mirrored)
    with strategy.scope():
        assert variable.assign_add(torch.tensor(2.0), read_value=False) is None
        assert torch.add(variable.assign_sub(1.0), 0.0) == 6.0
    assert copies_of(variable) == [6.0, 6.0]
    assert [float(value) for value in written.values] == [5.0, 5.0]


@pytest.mark.spec("VWR-2")
def test_values_that_differ_between_replicas_are_refused(
    strategy: MirroredStrategy,
) -> None:
    """Nothing is changed."""
    variable = shared(strategy, 1.0)
    with pytest.raises(ValueError, match=r"PerReplica .*differ; combine"):
        variable.assign(PerReplica([2.0, 3.0]))
    assert copies_of(variable) == [1.0, 1.0]


@pytest.mark.spec("VWR-3")
def test_copies_take_mirrored_values(strategy: MirroredStrategy) -> None:
    """Also of another mirrored variable, but none that are mirrored in name only."""
    variable, other = shared(strategy, 1.0), shared(strategy, 0.0)
    variable.assign(Mirrored([torch.tensor(2.0), torch.tensor(2.0)]))
    assert copies_of(variable) == [2.0, 2.0]
    with strategy.scope():
        other.assign(variable)
    assert copies_of(other) == [2.0, 2.0]
    with pytest.raises(ValueError, match="are to be equal and differ"):
        variable.assign(Mirrored([torch.tensor(2.0), torch.tensor(3.0)]))
    assert copies_of(variable) == [2.0, 2.0]


@pytest.mark.parametrize("aggregation", list(VariableAggregation))
@pytest.mark.spec("VWR-4")
def test_an_update_writes_one_copy(
    strategy: MirroredStrategy, aggregation: VariableAggregation
) -> None:
    """By the copy or by the variable."""
    variable = shared(strategy, 1.0, aggregation)
    deltas, seen = Mirrored([10.0, 10.0]), []

    def adding(v: Variable, x: float) -> None:
        v.assign_add(x)
        seen.append(copies_of(variable))

    def assigning(v: Variable, x: float) -> None:
        variable.assign(x)
        seen.append(copies_of(variable))

    strategy.extended.update(variable, adding, (deltas,))
    strategy.extended.update(variable, assigning, (deltas,))
    assert seen == [[11.0, 1.0], [11.0, 11.0], [10.0, 11.0], [10.0, 10.0]]


@pytest.mark.parametrize(
    ("aggregation", "method", "expected"),
    [
        (SUM, "assign", 5.0),
        (SUM, "assign_add", 15.0),
        (SUM, "assign_sub", 5.0),
        (MEAN, "assign", 2.5),
        (MEAN, "assign_add", 12.5),
        (MEAN, "assign_sub", 7.5),
        (FIRST, "assign", 2.0),
        (FIRST, "assign_add", 12.0),
        (FIRST, "assign_sub", 8.0),
    ],
)
@pytest.mark.spec("VWR-5", "VWR-7", "VWR-9", "VWR-11", "VWR-21")
def test_what_replicas_write_is_combined(
    strategy: MirroredStrategy,
    aggregation: VariableAggregation,
    method: str,
    expected: float,
) -> None:
    """The same on every copy."""
    variable = shared(strategy, 10.0, aggregation)
    write = getattr(variable, method)
    result = strategy.run(lambda x: write(x), (PerReplica([2.0, 3.0]),))
    assert isinstance(result, PerReplica)
    assert [value.tolist() for value in result.values] == [expected, expected]
    assert copies_of(variable) == [expected, expected]


@pytest.mark.spec("VWR-6", "VWR-8")
def test_one_value_of_all_replicas_has_no_sum(strategy: MirroredStrategy) -> None:
    """Unclear for SUM, itself for MEAN."""
    summed, averaged = shared(strategy, 1.0, SUM), shared(strategy, 1.0, MEAN)
    value = torch.tensor(4.0)
    for same in (4.0, value):
        with pytest.raises(ValueError, match="non-DistributedValues value"):
            strategy.run(summed.assign, (same,))
        strategy.run(averaged.assign, (same,))
    assert copies_of(summed) == [1.0, 1.0]
    assert copies_of(averaged) == [4.0, 4.0]


@pytest.mark.parametrize("aggregation", list(VariableAggregation))
@pytest.mark.spec("VWR-6")
def test_a_single_replica_writes_what_it_likes(
    aggregation: VariableAggregation,
) -> None:
    strategy = MirroredStrategy(["CPU:0"])
    variable = shared(strategy, 1.0, aggregation)
    strategy.run(lambda: variable.assign_add(4.0))
    assert copies_of(variable) == [5.0]


def test_torch_writes_copies_in_updates_only(strategy: MirroredStrategy) -> None:
    """An in-place function would change one copy and leave the others."""
    variable = shared(strategy, 1.0)
    with pytest.raises(ValueError, match="add_; use assign"), torch.no_grad():
        variable.add_(1.0)
    strategy.extended.update(variable, lambda v: variable.add_(1.0))
    assert copies_of(variable) == [2.0, 2.0]


def rows(values: list[float], indices: list[int]) -> IndexedSlices:
    return IndexedSlices(torch.tensor(values), torch.tensor(indices))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("scatter_add", [5.0, 4.0, 8.0]),
        ("scatter_sub", [-1.0, 4.0, 4.0]),
        ("scatter_mul", [6.0, 4.0, 12.0]),
        ("scatter_div", [2 / 3, 4.0, 3.0]),
        ("scatter_min", [2.0, 4.0, 2.0]),
        ("scatter_max", [3.0, 4.0, 6.0]),
        ("scatter_update", [3.0, 4.0, 2.0]),
    ],
)
@pytest.mark.parametrize("aggregation", [NONE, FIRST])
@pytest.mark.spec("VSC-1", "VSC-5")
def test_rows_are_written_to_every_copy(
    strategy: MirroredStrategy,
    method: str,
    expected: list[float],
    aggregation: VariableAggregation,
) -> None:
    variable = shared(strategy, [2.0, 4.0, 6.0], aggregation)
    getattr(variable, method)(rows([3.0, 2.0], [0, 2]))
    assert copies_of(variable) == [pytest.approx(expected)] * 2
    with pytest.raises(TypeError, match="takes IndexedSlices"):
        getattr(variable, method)(torch.ones(1))


@pytest.mark.parametrize(
    ("aggregation", "method", "expected"),
    [
        (SUM, "scatter_add", [5.0, 4.0]),
        (SUM, "scatter_sub", [-1.0, 4.0]),
        (SUM, "scatter_mul", [4.0, 4.0]),
        (MEAN, "scatter_add", [3.5, 4.0]),
        (MEAN, "scatter_mul", [1.0, 4.0]),
        (MEAN, "scatter_div", [4.0, 4.0]),
        (FIRST, "scatter_add", [3.0, 4.0]),
        (FIRST, "scatter_update", [1.0, 4.0]),
        (FIRST, "scatter_min", [1.0, 4.0]),
    ],
)
@pytest.mark.spec("VSC-2", "VSC-3")
def test_rows_of_replicas_are_put_together(
    strategy: MirroredStrategy,
    aggregation: VariableAggregation,
    method: str,
    expected: list[float],
) -> None:
    """Duplicates accumulate; MEAN: values ÷ N."""
    variable = shared(strategy, [2.0, 4.0], aggregation)
    write = getattr(variable, method)
    strategy.run(lambda: write(rows([float(number() + 1)], [0])))
    assert copies_of(variable) == [expected, expected]


@pytest.mark.parametrize("method", ["scatter_min", "scatter_max", "scatter_update"])
@pytest.mark.parametrize("aggregation", [SUM, MEAN])
@pytest.mark.spec("VSC-1", "VSC-2")
def test_rows_without_a_combination_are_refused(
    strategy: MirroredStrategy, method: str, aggregation: VariableAggregation
) -> None:
    """In any context."""
    variable = shared(strategy, [2.0], aggregation)
    write = getattr(variable, method)
    with pytest.raises(NotImplementedError, match=method):
        strategy.run(lambda: write(rows([1.0], [0])))
    with pytest.raises(NotImplementedError, match=method):
        write(rows([1.0], [0]))
    assert copies_of(variable) == [[2.0], [2.0]]


def test_reduced_values_fit_the_variable(strategy: MirroredStrategy) -> None:
    """EXT-1, EXT-2: a mirrored variable as destination gives Mirrored."""
    variable = shared(strategy, 0.0)
    value = PerReplica([torch.tensor(1.0), torch.tensor(3.0)])
    reduced = strategy.extended.reduce_to(stratagem.ReduceOp.MEAN, value, variable)
    assert isinstance(reduced, Mirrored)
    variable.assign(reduced)
    assert copies_of(variable) == [2.0, 2.0]
    first, second = strategy.extended.batch_reduce_to("sum", [(value, variable), (value, "CPU:0")])
    assert isinstance(first, Mirrored)
    assert second == 4.0
