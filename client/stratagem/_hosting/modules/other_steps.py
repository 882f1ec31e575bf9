"""Refusing to train what a strategy has by steps that are none of the strategy's."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch

from stratagem._hosting.modules.hosted_parameter import HostedParameter
from stratagem._hosting.modules.outside_changes import HookOfParameter
from stratagem_proto.errors import FailedPreconditionError

_handles: WeakKeyDictionary[HostedParameter, Any] = WeakKeyDictionary()


def refuse_other_steps(hosted: HostedParameter) -> None:
    """Refuse a backward to a parameter that the program has written since the one before.

    That is how an optimizer trains that is none of torch's, as those of Keras and of fastai: it
    would train what this process has, and nobody else would know. Optimizers of a strategy call
    `leave_to_optimizer`, and see to writes themselves.
    """
    parameter = hosted.parameter
    if parameter.requires_grad and not parameter.is_meta:
        hook = _Backwards(hosted)
        _handles[hosted] = parameter.register_post_accumulate_grad_hook(hook)


def leave_to_optimizer(hosted: HostedParameter) -> None:
    """Take note that an optimizer of a strategy steps a parameter."""
    handle = _handles.pop(hosted, None)
    if handle is not None:
        handle.remove()


class _Written(NamedTuple):
    """What tells one value of a parameter that the program has written from another one."""

    version: int
    address: int
    sum: str


class _Backwards(HookOfParameter):
    """Hook that is called after each backward to a parameter."""

    def __init__(self, hosted: HostedParameter) -> None:
        # Not to keep what only the parameter's modules should.
        self._hosted = ref(hosted)
        self._is_first = True
        self._written: _Written | None = None

    def __call__(self, parameter: torch.Tensor) -> None:
        hosted = self._hosted()
        if hosted is None:
            return
        before, self._written = self._written, _written(hosted)
        if not self._is_first and self._written not in (None, before):
            raise _refusal(hosted)
        # A model may be given its first values until then.
        self._is_first = False


def _written(hosted: HostedParameter) -> _Written | None:
    if not hosted.written_locally():
        return None
    values = hosted.parameter.detach()
    return _Written(values._version, values.data_ptr(), str(values.double().sum().item()))


def _refusal(hosted: HostedParameter) -> FailedPreconditionError:
    strategy = type(hosted.variable.distribute_strategy).__name__
    return FailedPreconditionError(
        f"parameter {hosted.name!r} was written by the program between two backwards, and no "
        f"optimizer of its {strategy} steps it: this worker would train its own copy alone. Step "
        "it by a torch.optim.Optimizer that stratagem.DistributedOptimizer or "
        "stratagem.frameworks.distributed wraps; optimizers that are none of torch's, as those of "
        "Keras and of fastai, write parameters themselves",
        variable=hosted.name,
    )
