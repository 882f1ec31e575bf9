"""All kinds of objects that stay on workers."""

from __future__ import annotations

from stratagem._hosts.kinds import (
    CopiedVariableKind,
    HostInputKind,
    HostParameterKind,
    HostStrategyKind,
)
from stratagem._shipping.residents.kinds import Kind
from stratagem._shipping.residents.modules import ModuleKind
from stratagem._shipping.residents.optimizers import OptimizerKind
from stratagem._shipping.residents.parameters import ParameterKind
from stratagem._shipping.residents.resident import Resident
from stratagem._shipping.residents.results import ResultKind
from stratagem._shipping.residents.strategies import (
    ExtendedKind,
    ResolverKind,
    StrategyKind,
)
from stratagem._shipping.residents.variables import ShardedVariableKind, VariableKind

# A program may make classes without end, and drop them with all that they have.
_MOST_KNOWN = 1 << 10


class KindTable(dict[type, "Kind | type[Resident] | None"]):
    """By class, of which kind its instances may be; None for what travels by value.

    A dict, because each object that is pickled is looked up here.

    Args:
        kinds: Those that there are.
    """

    def __init__(self, *kinds: Kind) -> None:
        super().__init__()
        self.kinds = kinds

    def __missing__(self, cls: type) -> Kind | type[Resident] | None:
        if len(self) >= _MOST_KNOWN:
            self.clear()
        fitting = (kind for kind in self.kinds if issubclass(cls, kind.types))
        found = Resident if issubclass(cls, Resident) else next(fitting, None)
        self[cls] = found
        return found


OF_COORDINATOR = KindTable(
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
"""What belongs to a strategy with parameter servers."""

OF_HOSTS = KindTable(
    HostStrategyKind(),
    ExtendedKind(),
    ResolverKind(),
    CopiedVariableKind(),
    HostParameterKind(),
    ModuleKind(),
    OptimizerKind(),
    HostInputKind(),
)
"""What belongs to a strategy whose replicas are on hosts."""

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (*OF_COORDINATOR.kinds, *OF_HOSTS.kinds)
}
"""The kinds by their names."""
