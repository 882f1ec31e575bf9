"""Refusing to train what a strategy has by steps that are none of the strategy's.

That is how an optimizer trains that is none of torch's, as those of Keras and of fastai: it writes
parameters itself between two backwards. Where other processes have the parameter too, it would
train what this process has, and nobody else would know.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_pre_hooks, register_optimizer_step_pre_hook

from stratagem._core.replica_context import get_replica_context
from stratagem._core.variables import Variable
from stratagem._hosting.hosted_parameter import HookOfParameter, HostedParameter, hosted_parameter
from stratagem_proto.errors import FailedPreconditionError

_LOG = logging.getLogger("stratagem")


class _Workers:
    """The strategies of this process, some of which train together with other workers."""

    def __init__(self) -> None:
        # Whether there is nothing to warn of for a strategy, or no more.
        self._warned: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

    def add(self, strategy: object, has_others: bool) -> None:
        """Take a strategy in, which trains alone or with other workers."""
        self._warned[strategy] = not has_others

    def leave_out(self, strategy: object) -> None:
        """Warn no longer of a strategy, which has been closed."""
        self._warned.pop(strategy, None)

    def warn_of(self, strategy: object | None, what: str) -> None:
        """Say once that each worker trains something by itself.

        Args:
            strategy: Under which that happens, if it is one with other workers.
            what: What trains it.
        """
        if strategy is None or self._warned.get(strategy, True):
            return
        self._warned[strategy] = True
        _LOG.warning(
            "%s trains parameters that were made in no scope of %s: each worker trains "
            "its own, and they drift apart. Build the model inside `with "
            "strategy.scope():`, if all are to train the same.",
            what,
            type(strategy).__name__,
        )

    def warn_of_any(self, what: str) -> None:
        """As `warn_of`, of the strategy that was made last, if there is one."""
        if strategies := list(self._warned):
            self.warn_of(strategies[-1], what)


workers = _Workers()


_handles: WeakKeyDictionary[HostedParameter, Any] = WeakKeyDictionary()


def refuse_other_steps(hosted: HostedParameter) -> None:
    """Refuse a backward to a parameter that the program has written since the one before.

    Optimizers of a strategy call `leave_to_optimizer`, and see to writes themselves.
    """
    early = _before_adoption(hosted.parameter)
    if early is not None:
        early.handle.remove()
    handle = _registered(hosted.parameter, _Backwards(hosted))
    if handle is not None:
        _handles[hosted] = handle


def leave_to_optimizer(hosted: HostedParameter) -> None:
    """Take note that an optimizer of a strategy steps a parameter."""
    handle = _handles.pop(hosted, None)
    if handle is not None:
        handle.remove()


class OpenScope:
    """Watches over the parameters of modules that are built in a scope, until it adopts them.

    Args:
        strategy: What errors call the strategy.
        adopt: Adopts the modules that the calling thread has built in its open scope.

    Attributes:
        strategy: Likewise.
        adopt: Likewise.
        is_open: Whether the scope has not been left.
    """

    def __init__(self, strategy: str, adopt: Callable[[], None]) -> None:
        self.strategy, self.adopt = strategy, adopt
        self.is_open = True

    def watch(self, module: nn.Module, key: str, parameter: Parameter) -> None:
        """Refuse to have a parameter trained by what is none of the strategy's."""
        if hosted_parameter(parameter) is None and _before_adoption(parameter) is None:
            hook = _EarlyBackwards(self, f"{key!r} of a {type(module).__name__}")
            hook.handle = _registered(parameter, hook)


def adopt_before_step(parameter: torch.Tensor) -> None:
    """Adopt a parameter of a module that was built in a scope that this thread has open."""
    early = _before_adoption(parameter)
    if early is not None and hosted_parameter(parameter) is None:
        early.scope.adopt()


def require_untrained(parameter: torch.Tensor) -> None:
    """Check that a parameter that is to be hosted was not trained before.

    Raises:
        FailedPreconditionError: It was written after a backward to it.
    """
    early = _before_adoption(parameter)
    if early is not None:
        early.require_untrained(parameter)


def _registered(parameter: Parameter, hook: HookOfParameter) -> Any:
    """Have a hook called after each backward to a parameter, also if that is frozen now."""
    differentiable = parameter.is_floating_point() or parameter.is_complex()
    if parameter.is_meta or not parameter.is_leaf or not differentiable:
        return None
    trained = parameter.requires_grad
    # Lazy parameters take no functions of torch.
    with torch._C.DisableTorchFunctionSubclass():
        try:
            return parameter.requires_grad_().register_post_accumulate_grad_hook(hook)
        finally:
            parameter.requires_grad_(trained)


def _before_adoption(parameter: torch.Tensor) -> _EarlyBackwards | None:
    with torch._C.DisableTorchFunctionSubclass():
        hooks: Mapping[int, Any] = parameter._post_accumulate_grad_hooks or {}
    early = (hook for hook in hooks.values() if isinstance(hook, _EarlyBackwards))
    return next((hook for hook in early if hook.scope.is_open), None)


class _Value(NamedTuple):
    """What tells one value of a parameter that the program has written from another one."""

    version: int
    address: int
    sum: str

    @classmethod
    def present(cls, parameter: torch.Tensor) -> _Value:
        values = parameter.detach()
        return cls(values._version, values.data_ptr(), str(values.double().sum().item()))


class _Backwards(HookOfParameter):
    """Hook that is called after each backward to a parameter."""

    def __init__(self, hosted: HostedParameter) -> None:
        # Not to keep what only the parameter's modules should.
        self._hosted = ref(hosted)
        self._is_first = True
        self._written: _Value | None = None

    def __call__(self, parameter: torch.Tensor) -> None:
        hosted = self._hosted()
        if hosted is None:
            return
        now = _Value.present(hosted.parameter) if hosted.written_locally() else None
        before, self._written = self._written, now
        if not self._is_first and now not in (None, before):
            strategy = type(hosted.variable.distribute_strategy).__name__
            raise _refusal(repr(hosted.name), strategy, hosted.name)
        # A model may be given its first values until then.
        self._is_first = False


class _EarlyBackwards(HookOfParameter):
    """The same for a parameter whose module a scope has not adopted yet."""

    def __init__(self, scope: OpenScope, what: str) -> None:
        self.scope, self._what = scope, what
        self.handle: Any = None
        self._seen: _Value | None = None

    def __call__(self, parameter: torch.Tensor) -> None:
        if self.scope.is_open and hosted_parameter(parameter) is None:
            self.require_untrained(parameter)
            self._seen = _Value.present(parameter)

    def require_untrained(self, parameter: torch.Tensor) -> None:
        if self._seen is not None and self._seen != _Value.present(parameter):
            raise _refusal(f"{self._what}, whose scope is open,", self.scope.strategy)


def _refusal(what: str, strategy: str, variable: str = "") -> FailedPreconditionError:
    return FailedPreconditionError(
        f"parameter {what} was written by the program after a backward, and no optimizer of its "
        f"{strategy} steps it: this process would train its own copy alone. Step it by a "
        "torch.optim.Optimizer that stratagem.DistributedOptimizer or stratagem.frameworks."
        "distributed wraps; optimizers that are none of torch's, as those of Keras and of fastai, "
        "write parameters themselves. Models of Keras train by stratagem.frameworks.keras.prepare",
        variable=variable,
    )


class DistributedSteps(Optimizer):
    """An optimizer whose steps a strategy carries out."""


_of_own_steps: WeakKeyDictionary[Optimizer, str] = WeakKeyDictionary()


def leave_to_own_steps(optimizer: Optimizer, what: str) -> None:
    """Take note that `what`, such as "LocalSteps", shares what an optimizer trains."""
    _of_own_steps[optimizer] = what


def require_not_left(tensors: Iterable[torch.Tensor], what: str) -> None:
    """Check that no worker steps parameters by itself that `what` is to step.

    Raises:
        FailedPreconditionError: One does, and both would step them.
    """
    ids = {id(one) for one in tensors} if _of_own_steps else ()
    for optimizer, owner in [*_of_own_steps.items()]:
        if any(id(one) in ids for group in optimizer.param_groups for one in group["params"]):
            raise FailedPreconditionError(
                f"{what} would step parameters that the {owner} of {type(optimizer).__name__} "
                "trains in this worker, and nobody would share or keep what it makes of them; give "
                "each parameter to one optimizer"
            )


FindVariable: TypeAlias = Callable[[torch.Tensor], Variable | None]
"""Returns the variable of a strategy whose `value()` a tensor is."""


class _Watch:
    """Sees the steps of all optimizers of the process, once it is there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_there = False
        self.find: FindVariable = lambda tensor: None
        # To look for variables takes long; by optimizer: in how many tensors none was found.
        self._known: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()

    def variable_in(self, optimizer: Optimizer, tensors: Sequence[torch.Tensor]) -> Variable | None:
        """Return a variable that has more values than what an optimizer steps; None if none has."""
        if self._known.get(optimizer) != len(tensors):
            for found in map(self.find, tensors):
                strategy: Any = None if found is None else found.distribute_strategy
                if strategy is not None and not strategy.extended._hosting.trains_in_place:
                    return found
            self._known[optimizer] = len(tensors)
        return None

    def begin(self) -> None:
        with self._lock:
            if not self.is_there:
                register_optimizer_step_pre_hook(_before_step)
                self.is_there = True


_watch = _Watch()


def watch_plain_optimizers(find: FindVariable | None = None) -> None:
    """Refuse steps of torch's own optimizers that are no steps of a strategy."""
    _watch.find = find or _watch.find
    _watch.begin()


def have_others_hooks() -> bool:
    """Return whether a hook that is not ours is to be called before each step."""
    return len(_global_optimizer_pre_hooks) > _watch.is_there


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if isinstance(optimizer, DistributedSteps) or optimizer in _of_own_steps:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if parameters and all(parameter.is_meta for parameter in parameters):
        # Nothing is stepped, only found out what a step does.
        return
    for parameter in parameters:
        adopt_before_step(parameter)
    hosted = [*filter(None, map(hosted_parameter, parameters))]
    if hosted:
        _require_alone(optimizer, next((one for one in hosted if not one.is_here), hosted[0]))
        return
    require_not_left(parameters, f"torch.optim.{type(optimizer).__name__}")
    variable = _watch.variable_in(optimizer, parameters)
    if variable is not None:
        raise _copy_alone(optimizer, variable)
    replica = get_replica_context()
    workers.warn_of(replica and replica.strategy, f"{type(optimizer).__name__}.step()")


def _require_alone(optimizer: Optimizer, hosted: HostedParameter) -> None:
    """Check that a parameter is nothing but what this process has of it.

    Raises:
        FailedPreconditionError: It is a copy, which would be trained by itself.
    """
    strategy = hosted.variable.distribute_strategy
    assert strategy is not None
    hosting = strategy.extended._hosting
    if hosting is not None and hosting.trains_in_place and hosted.is_here:
        return
    raise _copy_alone(optimizer, hosted.variable)


def _copy_alone(optimizer: Optimizer, variable: Variable) -> FailedPreconditionError:
    name, strategy = type(optimizer).__name__, type(variable.distribute_strategy).__name__
    return FailedPreconditionError(
        f"torch.optim.{name} would step {variable.name!r} in this process alone, but it "
        f"is a variable of a {strategy}, which has more than this copy "
        f"of it; wrap the optimizer: stratagem.DistributedOptimizer({name}(...))",
        variable=variable.name,
    )
