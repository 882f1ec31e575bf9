"""How the objects of a strategy travel to its hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.nn import Parameter

from stratagem._core.distributed_variables import CopiedVariable
from stratagem._core.variables import LocalVariable, Variable
from stratagem._hosting.hosted_parameter import HostedParameter
from stratagem._remote_objects.modules import ModuleKind
from stratagem._remote_objects.optimizers import OptimizerKind
from stratagem._remote_objects.strategies import ExtendedKind, ResolverKind, require_own
from stratagem._remote_objects.variables import HostedKind, of_a_parameter, own_variable
from stratagem._shipping.kinds import (
    Change,
    ChangingKind,
    KindTable,
    ObjectKind,
    SessionKind,
    WorkerTask,
)
from stratagem._strategies.strategy import Strategy
from stratagem._tpu.extended import CoresExtended, CoresStrategy
from stratagem._tpu.host import VariableForm, host_of, host_strategy
from stratagem._tpu.inputs import HostInput, HostsIterator


class HostStrategyKind(SessionKind):
    """The program's strategy."""

    name = "strategy of hosts"
    types = (CoresStrategy,)

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        return require_own("a strategy", value, strategy)

    def label(self, subject: CoresStrategy) -> str:
        return "the strategy"

    def essence(self, subject: CoresStrategy, strategy: Strategy) -> Any:
        return subject._class_on_hosts(), subject.extended._cores.plan()

    def make(self, essence: Any, task: WorkerTask) -> CoresStrategy:
        cls, plan = essence
        return host_strategy(cls, plan, task.index)

    def refresh(self, made: CoresStrategy) -> None:
        """Do nothing: values come with calls."""

    def close(self, made: CoresStrategy) -> None:
        host_of(made).close()


class CopiedVariableKind(ObjectKind):
    """A `Variable`. Calls bring its value when the program has changed it."""

    name = "copied variable"
    types = (CopiedVariable, LocalVariable)

    def subject(self, value: Variable, strategy: Strategy) -> object | None:
        if value.distribute_strategy is None:
            return None
        whole = own_variable(value, strategy)
        if isinstance(whole.values[0].value(), Parameter):
            raise of_a_parameter(whole)
        return whole

    def label(self, subject: Variable) -> str:
        return f"variable {subject.name!r}"

    def essence(self, subject: Variable, strategy: Strategy) -> Any:
        return strategy, VariableForm.of(subject)

    def make(self, essence: Any, task: WorkerTask) -> Variable:
        strategy, form = essence
        return host_of(strategy).attach_variable(form)


class HostParameterKind(HostedKind):
    """A parameter of a module. Calls bring its value, as that of a variable."""

    name = "parameter of hosts"

    def essence(self, subject: HostedParameter, strategy: Strategy) -> Any:
        return strategy, VariableForm.of(subject.variable)

    def make(self, essence: Any, task: WorkerTask) -> Parameter:
        strategy, form = essence
        return host_of(strategy).attach_parameter(form)


class HostInputKind(ChangingKind):
    """An iterator in the program, for which each host has its own."""

    name = "input of hosts"
    types = (HostsIterator,)

    def subject(self, value: HostsIterator, strategy: Strategy) -> object | None:
        require_own("an iterator", value.strategy, strategy)
        return value

    def label(self, subject: HostsIterator) -> str:
        return "the input"

    def essence(self, subject: HostsIterator, strategy: Strategy) -> Any:
        return strategy, subject.recipe

    def make(self, essence: Any, task: WorkerTask) -> HostInput:
        return HostInput(*essence)

    def state(self, subject: HostsIterator) -> Mapping[str, Any]:
        return {"passes": subject.passes}

    def update(self, made: HostInput, change: Change) -> None:
        made.restart()


class HostExtendedKind(ExtendedKind):
    """The `extended` of the program's strategy."""

    name = "extended of hosts"
    types = (CoresExtended,)


HOST_KINDS = KindTable(
    HostStrategyKind(),
    HostExtendedKind(),
    ResolverKind(),
    CopiedVariableKind(),
    HostParameterKind(),
    ModuleKind(),
    OptimizerKind(),
    HostInputKind(),
)
"""The kinds of objects that stay on hosts."""
