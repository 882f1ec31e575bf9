"""Variables and parameters as workers have them: without values of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from stratagem._core.distributed_variables import AggregatingVariable
from stratagem._core.variables import Variable
from stratagem._hosting.hosted_parameter import HostedParameter, hosted_parameter
from stratagem._parameter_server.attached import AttachedStrategy, ParameterParts
from stratagem._parameter_server.tables.variable import TableVariable
from stratagem._parameter_server.variables.sharded_variable import ShardedVariable
from stratagem._parameter_server.variables.split_variable import SplitVariable, parts_of
from stratagem._parameter_server.variables.variable import RemoteVariable, remote_of
from stratagem._remote_objects.hooks import require_no_hooks
from stratagem._remote_objects.strategies import require_own
from stratagem._shipping.kinds import Change, ChangingKind, ObjectKind, WorkerTask
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_proto.v1.variable_pb2 import VariableSpec

_GRADIENT_HOOKS = "_backward_hooks", "_post_accumulate_grad_hooks"


class HostedKind(ChangingKind):
    """A parameter that the strategy hosts, and whether it is trained."""

    types = (Parameter,)
    settings = frozenset({"requires_grad"})

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        hosted = hosted_parameter(value)
        if hosted is not None:
            own = hosted.variable.distribute_strategy
            require_own(f"parameter {hosted.name!r}", own, strategy)
            require_existing(hosted.variable)
            require_no_hooks(f"parameter {hosted.name!r}", hosted.parameter, _GRADIENT_HOOKS)
            return hosted
        if is_lazy(value):
            raise FailedPreconditionError(
                "a lazy parameter has no shape yet; call its module once on the "
                "coordinator before functions use it"
            )
        return None

    def label(self, subject: HostedParameter) -> str:
        return f"parameter {subject.name!r}"

    def stamp(self, subject: HostedParameter) -> object:
        # None would say that nothing tells.
        return (subject.parameter.requires_grad,)

    def state(self, subject: HostedParameter) -> Mapping[str, Any]:
        return {"requires_grad": subject.parameter.requires_grad}

    def update(self, made: Any, change: Change) -> None:
        self.restore(made, change.state)

    def restore(self, made: Parameter, settings: Mapping[str, Any]) -> None:
        if made.requires_grad is not settings.get("requires_grad", made.requires_grad):
            made.requires_grad_(settings["requires_grad"])


class ParameterKind(HostedKind):
    """A parameter that the strategy hosts, a table too. Its value does not travel.

    Each replica of a worker has a leaf of its own for it, as under any strategy.
    """

    name = "parameter"

    def essence(self, subject: HostedParameter, strategy: Strategy) -> Any:
        variable = subject.variable
        readable = variable.reach.nbytes if isinstance(variable, TableVariable) else None
        specs = [part.spec.SerializeToString() for part in parts_of(variable)]
        shape = tuple(subject.parameter.shape)
        return strategy, subject.name, shape, specs, readable

    def make(self, essence: Any, task: WorkerTask) -> Parameter:
        strategy: AttachedStrategy
        strategy, name, shape, specs, readable = essence
        found = tuple(map(VariableSpec.FromString, specs))
        parts = ParameterParts(name, shape, found, readable)
        return strategy.attached.parameter(parts)


class VariableKind(ObjectKind):
    """A `Variable` on a server. Its value does not travel."""

    name = "variable"
    types = (RemoteVariable, AggregatingVariable, SplitVariable)

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        if isinstance(value, AggregatingVariable) and remote_of(value) is None:
            return None
        whole = own_variable(value, strategy)
        if isinstance(whole, SplitVariable):
            raise of_a_parameter(whole)
        require_existing(whole)
        return whole

    def label(self, subject: Variable) -> str:
        return f"variable {subject.name!r}"

    def essence(self, subject: Variable, strategy: Strategy) -> Any:
        remote = remote_of(subject)
        assert remote is not None
        return strategy, remote.spec.SerializeToString()

    def make(self, essence: Any, task: WorkerTask) -> Variable:
        strategy: AttachedStrategy
        strategy, spec = essence
        return strategy.attached.variable(VariableSpec.FromString(spec))


class ShardedVariableKind(ObjectKind):
    """A `ShardedVariable`. Its shards are variables."""

    name = "sharded variable"
    types = (ShardedVariable,)

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        return value if remote_of(value.variables[0]) is not None else None

    def label(self, subject: ShardedVariable) -> str:
        return f"sharded variable {subject.name!r}"

    def essence(self, subject: ShardedVariable, strategy: Strategy) -> Any:
        divided = subject.variables[0]._shard_of is not None
        return subject.name, subject.variables, divided

    def make(self, essence: Any, task: WorkerTask) -> ShardedVariable:
        name, shards, divided = essence
        if divided:
            return ShardedVariable.divided(name, shards)
        return ShardedVariable(shards, name)


def own_variable(value: Variable, strategy: Strategy) -> Variable:
    """Return the whole variable that one is, or is a component of.

    Raises:
        InvalidArgumentError: It is of another strategy.
    """
    require_own(f"variable {value.name!r}", value.distribute_strategy, strategy)
    return value if value.container is None else value.container


def require_existing(variable: Variable) -> None:
    """Check that servers have a variable; raise as `RemoteVariable.require_existing`."""
    for part in parts_of(variable):
        part.require_existing()


def of_a_parameter(variable: Variable) -> InvalidArgumentError:
    """Return the error for a variable that follows a parameter."""
    return InvalidArgumentError(
        f"variable {variable.name!r} is that of a module's parameter; use the parameter"
    )
