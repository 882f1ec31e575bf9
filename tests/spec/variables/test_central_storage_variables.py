"""Variables that have one copy, for several replicas."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    CentralStorageStrategy,
    Mirrored,
    PerReplica,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from stratagem._core.distributed_variables import AggregatingVariable
from stratagem._core.variables import LocalVariable
from tests.client.two_replicas import number, shared

SUM, MEAN = VariableAggregation.SUM, VariableAggregation.MEAN

pytestmark = pytest.mark.usefixtures("four_cpus")


@pytest.fixture
def strategy() -> CentralStorageStrategy:
    return CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:2")


@pytest.mark.spec("VAR-4", "VAR-5", "VAR-18", "VRD-9")
def test_one_wrapper_for_several_replicas_none_for_one(
    strategy: CentralStorageStrategy,
) -> None:
    alone = CentralStorageStrategy(["CPU:0"])
    for owner, kind in ((strategy, AggregatingVariable), (alone, LocalVariable)):
        variable = shared(owner, 1.0)
        assert type(variable) is kind
        assert variable.distribute_strategy is owner
        assert owner.experimental_local_results(variable) == (variable,)
    component = shared(strategy, 1.0)
    assert isinstance(component, AggregatingVariable)
    assert strategy.extended.value_container(component._variable) is component


@pytest.mark.parametrize(("aggregation", "total"), [(SUM, 5.0), (MEAN, 2.5)])
@pytest.mark.spec("VAR-24")
def test_each_replica_writes_its_own_copy_on_read(
    strategy: CentralStorageStrategy, aggregation: VariableAggregation, total: float
) -> None:
    """In a replica context, reads and writes are performed on the local copy."""
    with strategy.scope():
        on_read = Variable(
            1.0,
            synchronization=VariableSynchronization.ON_READ,
            aggregation=aggregation,
        )
    assert not on_read.trainable

    def fn(delta: float) -> torch.Tensor:
        on_read.assign_add(delta)
        return on_read.read_value()

    found = strategy.run(fn, (PerReplica([1.0, 2.0]),))
    assert [each.item() for each in found.values] == [2.0, 3.0]
    assert on_read.numpy() == total


@pytest.mark.parametrize("aggregation", ["x", 7])
@pytest.mark.spec("VAR-22")
def test_modes_are_checked(strategy: CentralStorageStrategy, aggregation: Any) -> None:
    """A ValueError whatever the name."""
    with pytest.raises(ValueError, match="Invalid variable aggregation mode"):
        shared(strategy, 1.0, aggregation)


@pytest.mark.spec("VAR-23", "VWR-12")
def test_the_mean_of_integers_has_no_place_in_them(
    strategy: CentralStorageStrategy,
) -> None:
    """Accepted here; the assignment fails."""
    variable = shared(strategy, 1, MEAN)
    with pytest.raises(ValueError, match=r"torch\.float64"):
        strategy.run(variable.assign, (PerReplica([1, 2]),))
    assert variable.numpy() == 1


@pytest.mark.spec("VRD-7", "VRD-8", "VRD-13")
def test_reads_are_the_same_everywhere(strategy: CentralStorageStrategy) -> None:
    variable = shared(strategy, 3.0)
    seen = strategy.run(lambda: (variable + 0.0).detach())
    assert [float(value) for value in seen.values] == [3.0, 3.0]
    with stratagem.device("CPU:1"):
        assert variable.read_value() == 3.0
    assert repr(variable).startswith("<Variable 'Variable' shape=()")
    assert strategy.extended.read_var(variable) == 3.0


@pytest.mark.spec("VRD-7")
def test_gradients_come_back_to_the_variable(strategy: CentralStorageStrategy) -> None:
    variable = shared(strategy, 3.0)

    def fn() -> Any:
        read = variable.read_value() * (variable * (number() + 1.0))
        read.backward()
        gradient = variable.grad
        assert gradient is not None
        return gradient.clone()

    assert [float(each) for each in strategy.run(fn).values] == [6.0, 12.0]


@pytest.mark.spec("VWR-1", "VWR-2", "VWR-3", "VWR-15")
def test_writes_from_outside(strategy: CentralStorageStrategy) -> None:
    variable = shared(strategy, 1.0)
    assert variable.assign(2.0) is variable
    variable.assign(Mirrored([torch.tensor(3.0), torch.tensor(4.0)]))
    assert variable.numpy() == 3.0
    with pytest.raises(ValueError, match="PerReplica"), strategy.scope():
        variable.assign(PerReplica([5.0, 6.0]))
    assert variable.numpy() == 3.0
