"""Optimizers of torch that step where a strategy has to."""

from __future__ import annotations

import threading
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_pre_hooks, register_optimizer_step_pre_hook

from stratagem._core.replica_context import get_replica_context
from stratagem._hosting.modules.hosted_parameter import HostedParameter, hosted_parameter
from stratagem._hosting.modules.other_steps import adopt_before_step
from stratagem._hosting.modules.unscoped import workers
from stratagem_proto.errors import FailedPreconditionError


class DistributedSteps(Optimizer):
    """An optimizer whose steps a strategy carries out."""


class _Watch:
    """Sees the steps of all optimizers of the process, once it is there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_there = False

    def begin(self) -> None:
        with self._lock:
            if not self.is_there:
                register_optimizer_step_pre_hook(_before_step)
                self.is_there = True


_watch = _Watch()


def watch_plain_optimizers() -> None:
    """Refuse steps of torch's own optimizers that are no steps of a strategy."""
    _watch.begin()


def have_others_hooks() -> bool:
    """Return whether a hook that is not ours is to be called before each step."""
    return len(_global_optimizer_pre_hooks) > _watch.is_there


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if isinstance(optimizer, DistributedSteps):
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if parameters and all(parameter.is_meta for parameter in parameters):
        # Nothing is stepped, only found out what a step does.
        return
    for parameter in parameters:
        adopt_before_step(parameter)
    hosted = next(filter(None, map(hosted_parameter, parameters)), None)
    if hosted is not None:
        _require_alone(optimizer, hosted)
        return
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
    if hosting is not None and hosting.trains_in_place:
        return
    name = type(optimizer).__name__
    raise FailedPreconditionError(
        f"torch.optim.{name} would step {hosted.name!r} in this process alone, but it "
        f"is a variable of a {type(strategy).__name__}, which has more than this copy "
        f"of it; wrap the optimizer: stratagem.DistributedOptimizer({name}(...))",
        variable=hosted.name,
    )
