"""What stays on workers of a strategy with parameter servers."""

from __future__ import annotations

from stratagem._remote_objects.modules import ModuleKind
from stratagem._remote_objects.optimizers import OptimizerKind
from stratagem._remote_objects.strategies import ExtendedKind, ResolverKind, StrategyKind
from stratagem._remote_objects.variables import ParameterKind, ShardedVariableKind, VariableKind
from stratagem._shipping.kinds import KindTable, PlainResultKind, ResultKind

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
    PlainResultKind(),
)
