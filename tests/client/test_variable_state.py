"""Values of variables, saved from one kind and restored into another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stratagem
from stratagem import (
    CentralStorageStrategy,
    MirroredStrategy,
    OneDeviceStrategy,
    PerReplica,
    Strategy,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from stratagem._variables.state import (
    load_variables_state,
    restoring,
    variables_state,
)

SUM, MEAN = VariableAggregation.SUM, VariableAggregation.MEAN
FIRST, NONE = VariableAggregation.ONLY_FIRST_REPLICA, VariableAggregation.NONE
ON_READ = VariableSynchronization.ON_READ
AUTO = VariableSynchronization.AUTO

pytestmark = pytest.mark.usefixtures("four_cpus")

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "mirrored": lambda: MirroredStrategy(["CPU:0", "CPU:1"]),
    "central": lambda: CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:2"),
    "one": lambda: OneDeviceStrategy("CPU:3"),
    "default": stratagem.get_strategy,
}


def created(
    strategy: Strategy,
    value: object = 0.0,
    synchronization: VariableSynchronization = AUTO,
    aggregation: VariableAggregation = NONE,
) -> Variable:
    with strategy.scope():
        return Variable(
            value,
            name="v",
            synchronization=synchronization,
            aggregation=aggregation,
        )


def copies_of(variable: Variable) -> list[float]:
    return [float(copy.numpy()) for copy in variable.values]


@pytest.mark.parametrize("source", STRATEGIES)
@pytest.mark.parametrize("target", STRATEGIES)
def test_any_variable_takes_the_value_of_any_other(source: str, target: str) -> None:
    """VCK-1, VCK-6, VCK-7: one tensor under the container's name, to every copy."""
    saved = variables_state([created(STRATEGIES[source](), 5.0)])
    assert list(saved) == ["v"]
    assert saved["v"].item() == 5.0
    variable = created(STRATEGIES[target]())
    load_variables_state([variable], saved)
    assert set(copies_of(variable)) == {5.0}
    saved["v"].fill_(7.0)
    assert set(copies_of(variable)) == {5.0}


@pytest.mark.parametrize(
    ("aggregation", "value", "restored"),
    [(SUM, 5.0, [2.5, 2.5]), (MEAN, 2.5, [2.5, 2.5]), (FIRST, 1.0, [1.0, 1.0])],
)
def test_copies_are_saved_combined(
    aggregation: VariableAggregation, value: float, restored: list[float]
) -> None:
    """VCK-2, VCK-3, VCK-4: SUM `[1,4]` → saved 5 → `[2.5, 2.5]`."""
    strategy = STRATEGIES["mirrored"]()
    variable = created(strategy, 0.0, ON_READ, aggregation)
    strategy.run(variable.assign, (PerReplica([1.0, 4.0]),))
    saved = variables_state([variable])
    assert saved["v"].item() == value
    load_variables_state([variable], saved)
    assert copies_of(variable) == restored


def test_without_aggregation_there_is_nothing_to_save() -> None:
    """VCK-5: ValueError at save; restoring gives every copy the value."""
    variable = created(STRATEGIES["mirrored"](), 0.0, ON_READ)
    with pytest.raises(ValueError, match="Could not convert from"):
        variables_state([variable])
    load_variables_state([variable], {"v": torch.tensor(3.0)})
    assert copies_of(variable) == [3.0, 3.0]


@pytest.mark.parametrize("target", ["mirrored", "central", "one"])
def test_a_variable_made_later_starts_with_its_value(target: str) -> None:
    """VCK-8, VAR-2: on every copy; others start as they were asked to."""
    strategy, state = STRATEGIES[target](), {"v": torch.tensor(4.0)}
    with strategy.scope(), restoring(state):
        variable, other = Variable(1.0, name="v"), Variable(1.0)
    assert set(copies_of(variable)) == {4.0}
    assert set(copies_of(other)) == {1.0}


def test_a_snapshot_that_lacks_a_variable_changes_nothing() -> None:
    variable = created(STRATEGIES["mirrored"](), 1.0)
    with pytest.raises(stratagem.NotFoundError, match="no variable 'v'; it has a"):
        load_variables_state([variable], {"a": torch.tensor(2.0)})
    assert copies_of(variable) == [1.0, 1.0]
