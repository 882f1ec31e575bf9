"""All kinds of objects that stay on workers."""

from __future__ import annotations

from stratagem._shipping.kinds import Kind
from stratagem._shipping.modules import ModuleKind
from stratagem._shipping.optimizers import OptimizerKind
from stratagem._shipping.parameters import ParameterKind
from stratagem._shipping.resident import Resident
from stratagem._shipping.results import ResultKind
from stratagem._shipping.strategies import ExtendedKind, ResolverKind, StrategyKind
from stratagem._shipping.variables import ShardedVariableKind, VariableKind

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        StrategyKind(),
        ExtendedKind(),
        ResolverKind(),
        VariableKind(),
        ShardedVariableKind(),
        ParameterKind(),
        ModuleKind(),
        OptimizerKind(),
        ResultKind(),
    )
}
"""The kinds by their names."""


class _Kinds(dict[type, "Kind | type[Resident] | None"]):
    def __missing__(self, cls: type) -> Kind | type[Resident] | None:
        fitting = (kind for kind in KINDS.values() if issubclass(cls, kind.types))
        self[cls] = Resident if issubclass(cls, Resident) else next(fitting, None)
        return self[cls]


KIND_OF = _Kinds()
"""By class, of which kind its instances may be; None for what travels by value.

A dict, because each object that is pickled is looked up here.
"""
