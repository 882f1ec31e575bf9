"""Variables that each replica writes for itself."""

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
    VariableSynchronization,
)
from stratagem._core.distributed_variables import SyncOnReadVariable
from tests.client.two_replicas import number

SUM, MEAN = VariableAggregation.SUM, VariableAggregation.MEAN
FIRST, NONE = VariableAggregation.ONLY_FIRST_REPLICA, VariableAggregation.NONE

pytestmark = pytest.mark.usefixtures("four_cpus")


@pytest.fixture
def strategy() -> MirroredStrategy:
    return MirroredStrategy(["CPU:0", "CPU:1"])


def metric(strategy: MirroredStrategy, value: Any, aggregation: VariableAggregation) -> Variable:
    with strategy.scope():
        variable = Variable(
            value,
            synchronization=VariableSynchronization.ON_READ,
            aggregation=aggregation,
        )
    assert isinstance(variable, SyncOnReadVariable)
    return variable


def copies_of(variable: Variable) -> list[Any]:
    return [copy.numpy().tolist() for copy in variable.values]


def counted(strategy: MirroredStrategy, aggregation: VariableAggregation) -> Variable:
    """A variable with the copies 1 and 4."""
    variable = metric(strategy, 0.0, aggregation)
    strategy.run(variable.assign, (PerReplica([1.0, 4.0]),))
    return variable


@pytest.mark.parametrize("aggregation", list(VariableAggregation))
@pytest.mark.spec("VRD-3", "VOR-1")
def test_a_replica_works_on_its_own_copy(
    strategy: MirroredStrategy, aggregation: VariableAggregation
) -> None:
    """No communication, so that one replica may write alone."""
    variable = counted(strategy, aggregation)

    def fn() -> tuple[torch.Tensor, torch.Tensor]:
        before = variable.read_value()
        variable.assign_sub(0.5)
        if number() == 1:
            variable.assign_add(10.0)
        return before, variable + 0.0

    before, after = strategy.run(fn)
    assert [float(value) for value in before.values] == [1.0, 4.0]
    assert [float(value) for value in after.values] == [0.5, 13.5]
    assert copies_of(variable) == [0.5, 13.5]


@pytest.mark.spec("VOR-1", "VOR-11")
def test_what_a_replica_wrote_can_be_reduced(strategy: MirroredStrategy) -> None:
    """Also by `all_reduce`, which sees the local copies."""
    variable = counted(strategy, MEAN)
    result = strategy.run(lambda: variable.assign_add(1.0))
    locals_ = strategy.experimental_local_results(result)
    assert [float(local) for local in locals_] == [2.0, 5.0]
    assert strategy.reduce("sum", result) == 7.0

    def fn() -> Any:
        replica = stratagem.get_replica_context()
        assert replica is not None
        return replica.all_reduce("sum", variable)

    assert [float(value) for value in strategy.run(fn).values] == [7.0, 7.0]


@pytest.mark.spec("VOR-2")
def test_without_aggregation_the_result_of_an_assignment_has_no_value(
    strategy: MirroredStrategy,
) -> None:
    """Reading it fails, after writing; nothing is read if it is not wanted."""
    variable = counted(strategy, NONE)
    with pytest.raises(ValueError, match="Could not convert from"):
        variable.assign(6.0)
    assert copies_of(variable) == [6.0, 6.0]
    assert variable.assign(7.0, read_value=False) is None
    assert copies_of(variable) == [7.0, 7.0]


@pytest.mark.parametrize(("total", "copies"), [(3, [2, 1]), (-3, [-1, -2]), (4, [2, 2])])
@pytest.mark.spec("VOR-2")
def test_the_remainder_of_an_integer_goes_to_the_first_replica(
    strategy: MirroredStrategy, total: int, copies: list[int]
) -> None:
    """Reading returns what was assigned."""
    variable = metric(strategy, 0, SUM)
    variable.assign(total)
    assert copies_of(variable) == copies
    assert variable.numpy() == total


@pytest.mark.parametrize(
    "value",
    [
        6,
        torch.tensor(6, dtype=torch.int64),
        Mirrored([torch.tensor(6), torch.tensor(6)]),
    ],
)
@pytest.mark.spec("VOR-3")
def test_what_is_assigned_is_converted(strategy: MirroredStrategy, value: Any) -> None:
    variable = metric(strategy, 0.0, SUM)
    variable.assign(value)
    assert variable.dtype is torch.float32
    assert copies_of(variable) == [3.0, 3.0]


def test_a_value_that_differs_between_replicas_is_none_for_all(
    strategy: MirroredStrategy,
) -> None:
    variable = metric(strategy, 0.0, SUM)
    with pytest.raises(ValueError, match="cannot take a PerReplica"):
        variable.assign(PerReplica([6.0, 6.0]))
    assert copies_of(variable) == [0.0, 0.0]


@pytest.mark.parametrize("aggregation", [SUM, MEAN, NONE])
@pytest.mark.spec("VOR-8")
def test_an_update_works_on_one_copy(
    strategy: MirroredStrategy, aggregation: VariableAggregation
) -> None:
    """Component r only, also for SUM."""
    variable = counted(strategy, aggregation)

    def fn(v: Variable) -> torch.Tensor:
        variable.assign_add(1.0)
        v.assign_sub(3.0)
        return variable.read_value()

    result = strategy.extended.update(variable, fn)
    assert [float(value) for value in result.values] == [-1.0, 2.0]
    assert copies_of(variable) == [-1.0, 2.0]


@pytest.mark.parametrize(
    "method",
    [
        "scatter_add",
        "scatter_sub",
        "scatter_mul",
        "scatter_div",
        "scatter_min",
        "scatter_max",
        "scatter_update",
    ],
)
@pytest.mark.spec("VOR-9")
def test_rows_are_not_written(strategy: MirroredStrategy, method: str) -> None:
    """In any context."""
    variable = metric(strategy, [1.0, 2.0], MEAN)
    rows = IndexedSlices(torch.ones(1), torch.tensor([0]))
    write = getattr(variable, method)
    with pytest.raises(NotImplementedError, match=method):
        write(rows)
    with pytest.raises(NotImplementedError, match=method):
        strategy.run(write, (rows,))
    assert copies_of(variable) == [[1.0, 2.0]] * 2


@pytest.mark.spec("VOR-10")
def test_a_captured_per_replica_value_is_refused(strategy: MirroredStrategy) -> None:
    variable, values = metric(strategy, 0.0, MEAN), PerReplica([1.0, 2.0])
    with pytest.raises(ValueError, match="pass it to the replica function"):
        strategy.run(lambda: variable.assign(values))
    assert copies_of(variable) == [0.0, 0.0]
