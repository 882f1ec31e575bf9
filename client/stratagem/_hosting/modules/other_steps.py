"""Refusing to train what a strategy has by steps that are none of the strategy's.

That is how an optimizer trains that is none of torch's, as those of Keras and of fastai: it writes
parameters itself between two backwards. Where other processes have the parameter too, it would
train what this process has, and nobody else would know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.nn import Parameter

from stratagem._hosting.modules.hosted_parameter import HostedParameter, hosted_parameter
from stratagem._hosting.modules.outside_changes import HookOfParameter
from stratagem_proto.errors import FailedPreconditionError

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
    def of(cls, parameter: torch.Tensor) -> _Value:
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
        now = _Value.of(hosted.parameter) if hosted.written_locally() else None
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
            self._seen = _Value.of(parameter)

    def require_untrained(self, parameter: torch.Tensor) -> None:
        if self._seen is not None and self._seen != _Value.of(parameter):
            raise _refusal(f"{self._what}, whose scope is open,", self.scope.strategy)


def _refusal(what: str, strategy: str, variable: str = "") -> FailedPreconditionError:
    return FailedPreconditionError(
        f"parameter {what} was written by the program after a backward, and no optimizer of its "
        f"{strategy} steps it: this process would train its own copy alone. Step it by a "
        "torch.optim.Optimizer that stratagem.DistributedOptimizer or stratagem.frameworks."
        "distributed wraps; optimizers that are none of torch's, as those of Keras and of fastai, "
        "write parameters themselves",
        variable=variable,
    )
