"""Parameters of modules as workers have them: leaves of their own, without values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from stratagem._hosting.modules.hosted_parameter import HostedParameter, hosted_parameter
from stratagem._parameter_server.attached import AttachedStrategy, ParameterParts
from stratagem._parameter_server.tables.variable import TableVariable
from stratagem._parameter_server.variables.split_variable import parts_of
from stratagem._remote_objects.strategies import require_own
from stratagem._shipping.remote_objects.kinds import Change, ChangingKind, WorkerTask
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import FailedPreconditionError
from stratagem_proto.v1.variable_pb2 import VariableSpec


class HostedKind(ChangingKind):
    """A parameter that the strategy hosts, and whether it is trained."""

    types = (Parameter,)

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        hosted = hosted_parameter(value)
        if hosted is not None:
            own = hosted.variable.distribute_strategy
            require_own(f"parameter {hosted.name!r}", own, strategy)
            return hosted
        if is_lazy(value):
            raise FailedPreconditionError(
                "a lazy parameter has no shape yet; call its module once on the "
                "coordinator before functions use it"
            )
        return None

    def label(self, subject: HostedParameter) -> str:
        return f"parameter {subject.name!r}"

    def state(self, subject: HostedParameter) -> Mapping[str, Any]:
        return {"requires_grad": subject.parameter.requires_grad}

    def update(self, made: Any, change: Change) -> None:
        made.requires_grad_(change.state.get("requires_grad", made.requires_grad))


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
