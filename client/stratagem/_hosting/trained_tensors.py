"""The tensors of an optimizer's param groups and the variables behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch
from torch.nn.parameter import is_lazy

from stratagem._core.contexts import current_replica_id, has_strategy
from stratagem._core.variables import Variable
from stratagem._hosting.hosted_parameter import HostedParameter, hosted_parameter
from stratagem._hosting.hosting import Hosting, hosting_of, living_hostings
from stratagem._hosting.other_steps import leave_to_optimizer, require_not_left, workers
from stratagem._strategies.strategy import default_strategy, get_strategy
from stratagem_proto.errors import ContextError, FailedPreconditionError, InvalidArgumentError

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy


class Trained(Protocol):
    """A variable that each replica sees by a leaf of its own."""

    @property
    def variable(self) -> Variable:
        """The variable."""
        ...

    def leaf_in(self, replica: int) -> torch.Tensor:
        """Return the leaf of a replica, which is that of this thread if it has one."""
        ...


class _TrainedVariable:
    """A `stratagem.Variable` whose `value()` is in a param group."""

    def __init__(self, variable: Variable) -> None:
        self.variable = variable

    def leaf_in(self, replica: int) -> torch.Tensor:
        # It looks for itself where it is.
        return self.variable.value()


class TrainedTensors:
    """Finds what is behind the tensors of one optimizer; all of one strategy.

    Attributes:
        plain: Whether they are tensors of the default strategy, which are just what they are, and
            are stepped by torch itself.
    """

    def __init__(self) -> None:
        self.plain = False
        self._forgotten: str | None = None
        self._hosting: Hosting | None = None
        # By id; the param groups keep the tensors alive.
        self._variables: dict[int, _TrainedVariable] = {}

    @property
    def strategy(self) -> Strategy:
        """The strategy of the tensors.

        Raises:
            InvalidArgumentError: There are no tensors yet.
        """
        if self.plain:
            return default_strategy()
        self.require_remembered()
        if self._hosting is None:
            raise InvalidArgumentError(
                "the optimizer has no parameters; give it those of a module that was "
                "built inside `with strategy.scope():`"
            )
        strategy: Strategy = self._hosting.extended._container_strategy()
        return strategy

    def forget(self, why: str) -> None:
        """Know nothing of the tensors any more, for a reason that errors tell."""
        self._forgotten = why
        self._hosting = None
        self._variables.clear()

    def require_remembered(self) -> None:
        """Raise FailedPreconditionError if they were forgotten."""
        if self._forgotten is not None:
            raise FailedPreconditionError(self._forgotten)

    def add(self, tensors: Sequence[torch.Tensor], where: str) -> None:
        """Take tensors in.

        Args:
            tensors: Parameters, or the `value()` of variables.
            where: What errors call their container.

        Raises:
            InvalidArgumentError: One belongs to no strategy, though another strategy than the
                default one is in charge or has the tensors before it.
            ContextError: Several strategies.
            FailedPreconditionError: This worker trains one by itself.
        """
        self.require_remembered()
        require_not_left(tensors, "DistributedOptimizer")
        current = hosting_of(get_strategy().extended)
        if current is not None:
            current.adopter.adopt()
        for index, tensor in enumerate(tensors):
            what = f"parameter {index} of {where}"
            hosting = self._hosting_of(tensor)
            if hosting is not None:
                self._join(hosting, what)
            elif has_strategy() or self._hosting is not None:
                shape = "unknown" if is_lazy(tensor) else tuple(tensor.shape)
                raise InvalidArgumentError(
                    f"{what}, of shape {shape}, belongs to no strategy; build "
                    "its module or Variable inside `with strategy.scope():`, and pass "
                    "that module's parameters or that variable's value()"
                )
            else:
                self.plain = True
                workers.warn_of_any("DistributedOptimizer")

    def _hosting_of(self, tensor: torch.Tensor) -> Hosting | None:
        hosted = hosted_parameter(tensor)
        if hosted is not None:
            leave_to_optimizer(hosted)
            strategy = hosted.variable.distribute_strategy
            return hosting_of(strategy and strategy.extended)
        for hosting in living_hostings:
            if hosting.adopter.reserves(tensor):
                return hosting
            variable = hosting.variable_seen_as(tensor)
            if variable is not None:
                self._variables[id(tensor)] = _TrainedVariable(variable)
                return hosting
        return None

    def _join(self, hosting: Hosting, what: str) -> None:
        if self.plain:
            raise InvalidArgumentError(
                f"{what} belongs to {type(hosting.extended._container_strategy()).__name__}, and "
                "those before it to no strategy, so that each worker would train its own; build "
                "their module, too, inside `with strategy.scope():`"
            )
        if self._hosting not in (None, hosting):
            raise ContextError(
                f"Mixing different tf.distribute.Strategy objects: {what} belongs to "
                "another strategy than those before it; use an optimizer for each"
            )
        self._hosting = hosting

    def find(self, tensor: torch.Tensor) -> Trained | None:
        """Return what is behind a tensor; None for a lazy one without a shape."""
        return self._variables.get(id(tensor)) or hosted_parameter(tensor)


class _Found(NamedTuple):
    """What is behind tensors of a `ReplicaParams`, as long as these are in it.

    They `are_hosted` if all are parameters of modules, of whose leaves there is a list.
    """

    tensors: Sequence[torch.Tensor]
    trained: Sequence[Trained | None]
    variables: Sequence[Variable | None]
    are_hosted: bool = False


class ReplicaParams(list[torch.Tensor]):
    """The "params" of a param group, which each replica reads as its own leaves.

    Code that walks through param groups, as clipping and gradient scaling do, so meets the
    gradients of the replica that it runs in.

    Args:
        tensors: The tensors of the group.
        trained: Finds what is behind them.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], trained: TrainedTensors) -> None:
        super().__init__(tensors)
        self._trained = trained
        self._found = _Found((), (), (), are_hosted=True)

    def trained(self) -> Sequence[Trained | None]:
        """Return what is behind each tensor; None for a lazy one without a shape."""
        return self._present().trained

    def variables(self) -> Sequence[Variable | None]:
        """Return the variable of each tensor, in the same object unless one changes."""
        return self._present().variables

    def _present(self) -> _Found:
        tensors = self._found.tensors
        if len(self) != len(tensors) or not all(map(is_, super().__iter__(), tensors)):
            trained = [self._trained.find(tensor) for tensor in super().__iter__()]
            variables = tuple([one if one is None else one.variable for one in trained])
            are_hosted = all([isinstance(one, HostedParameter) for one in trained])
            found = _Found([*super().__iter__()], trained, variables, are_hosted)
            if None in trained:
                return found
            self._found = found
        return self._found

    def _leaf(self, tensor: torch.Tensor) -> torch.Tensor:
        trained = self._trained.find(tensor)
        return tensor if trained is None else trained.leaf_in(current_replica_id() or 0)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.of_replica()[0])

    def of_replica(self) -> tuple[list[torch.Tensor], Sequence[Variable | None]]:
        """Return the leaves of the replica that this thread runs, and the variable of each."""
        found, replica = self._present(), current_replica_id() or 0
        if found.are_hosted:
            hosted = cast("Sequence[HostedParameter]", found.trained)
            return [one.leaves[replica] for one in hosted], found.variables
        pairs = zip(found.trained, super().__iter__(), strict=True)
        leaves = [t if one is None else one.leaf_in(replica) for one, t in pairs]
        return leaves, found.variables

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return self._leaf(found) if isinstance(found, torch.Tensor) else list(self)[index]

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return list, (list(self),)
