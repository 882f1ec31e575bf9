"""What stays on workers of a strategy with parameter servers."""

from __future__ import annotations

from stratagem._remote_objects.modules import ModuleKind
from stratagem._remote_objects.optimizers import OptimizerKind
from stratagem._remote_objects.parameters import ParameterKind
from stratagem._remote_objects.strategies import ExtendedKind, ResolverKind, StrategyKind
from stratagem._remote_objects.variables import ShardedVariableKind, VariableKind
from stratagem._shipping.remote_objects.kinds import KindTable
from stratagem._shipping.remote_objects.results import ResultKind

COORDINATOR_KINDS = KindTable(
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
