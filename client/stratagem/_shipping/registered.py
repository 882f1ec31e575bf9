"""All kinds of objects that stay on workers."""

from __future__ import annotations

from stratagem._shipping.kinds import Kind
from stratagem._shipping.modules import ModuleKind
from stratagem._shipping.optimizers import OptimizerKind
from stratagem._shipping.parameters import ParameterKind
from stratagem._shipping.results import ResultKind
from stratagem._shipping.strategies import ExtendedKind, StrategyKind
from stratagem._shipping.variables import ShardedVariableKind, VariableKind

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        StrategyKind(),
        ExtendedKind(),
        VariableKind(),
        ShardedVariableKind(),
        ParameterKind(),
        ModuleKind(),
        OptimizerKind(),
        ResultKind(),
    )
}
"""The kinds by their names."""


_found: dict[type, Kind | None] = {}


def kind_of(cls: type) -> Kind | None:
    """Return the kind that instances of a class may be of; None if there is none."""
    if cls not in _found:
        fitting = (kind for kind in KINDS.values() if issubclass(cls, kind.types))
        _found[cls] = next(fitting, None)
    return _found[cls]
