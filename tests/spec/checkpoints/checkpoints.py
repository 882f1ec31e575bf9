"""Strategies that save and restore, and their variables."""

from __future__ import annotations

from collections.abc import Callable

from stratagem import (
    CentralStorageStrategy,
    MirroredStrategy,
    OneDeviceStrategy,
    Strategy,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "mirrored": lambda: MirroredStrategy(["CPU:0", "CPU:1"]),
    "central": lambda: CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:2"),
    "one": lambda: OneDeviceStrategy("CPU:3"),
}


def created(
    strategy: Strategy,
    value: object = 0.0,
    synchronization: VariableSynchronization = VariableSynchronization.AUTO,
    aggregation: VariableAggregation = VariableAggregation.NONE,
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
