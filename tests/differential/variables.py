"""Variables as scenarios use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.differential.library import Library
from tests.differential.strategies import per_replica


def variable(
    lib: Library,
    strategy: Any,
    value: Any = 0.0,
    aggregation: str = "NONE",
    synchronization: str = "AUTO",
    **others: Any,
) -> Any:
    """Return a variable that a strategy made in its scope."""
    with strategy.scope():
        return lib.distribute.Variable(
            value,
            aggregation=lib.distribute.VariableAggregation[aggregation],
            synchronization=lib.distribute.VariableSynchronization[synchronization],
            **others,
        )


def metric(lib: Library, strategy: Any, aggregation: str, *copies: float, **others: Any) -> Any:
    """Return an ON_READ variable whose copies have these values."""
    made = variable(lib, strategy, 0.0, aggregation, "ON_READ", **others)
    values = per_replica(lib, strategy, [lib.tensor(copy) for copy in copies])
    strategy.run(made.assign, args=(values,))
    return made


def copies_of(strategy: Any, distributed: Any) -> list[float]:
    """Return the values of the copies, as numbers or lists of them."""
    copies = strategy.experimental_local_results(distributed)
    return [copy.numpy().tolist() for copy in copies]


def in_scope(strategy: Any, call: Callable[[], Any]) -> Any:
    """Return what a call returns in the scope of a strategy."""
    with strategy.scope():
        return call()
