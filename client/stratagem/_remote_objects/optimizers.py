"""Optimizers as workers have them: their steps go to the servers from there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stratagem._core.variables import Variable
from stratagem._gradients import hyperparameters_of
from stratagem._hosting.hosted_parameter import HostedParameter
from stratagem._hosting.hosting import Attached
from stratagem._hosting.optimizer import DistributedOptimizer
from stratagem._hosting.trained_tensors import Trained
from stratagem._parameter_server.attached import AttachedStrategy
from stratagem._remote_objects.hooks import require_no_hooks
from stratagem._remote_objects.strategies import require_own
from stratagem._shipping.kinds import Change, ChangingKind, WorkerTask
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError

Group = tuple[dict[str, Any], list[Any]]
"""Hyperparameters of a param group, and the parameters and variables in it."""


class OptimizerKind(ChangingKind):
    """A `DistributedOptimizer`: its hyperparameters, and what it trains.

    Its state is with the variables. Hyperparameters travel when they change on the coordinator, so
    schedulers run there.
    """

    name = "optimizer"
    types = (DistributedOptimizer, LRScheduler)
    settings = frozenset({"groups"})

    def subject(
        self, value: DistributedOptimizer | LRScheduler, strategy: Strategy
    ) -> object | None:
        if isinstance(value, LRScheduler):
            _refuse_stepping(value)
            return None
        require_no_hooks(f"optimizer {value.name!r}", value, _STEP_HOOKS)
        require_own(f"DistributedOptimizer {value.name!r}", value._strategy, strategy)
        if value._rules.are_traced:
            # What a worker would build anew lacks what its constructor was given.
            raise InvalidArgumentError(
                f"optimizer {value.name!r} is none of those that servers know by name, and cannot "
                "be used in functions on worker servers; use one of torch.optim there, or have "
                "each worker run the program itself"
            )
        value._show_schedulers_a_step()  # it steps, if elsewhere
        return value

    def label(self, subject: DistributedOptimizer) -> str:
        return f"optimizer {subject.name!r}"

    def essence(self, subject: DistributedOptimizer, strategy: Strategy) -> Any:
        limits = subject._limiter.limits
        settings = {
            "reduce_op": subject._reduce_op,
            "compression": subject._compressor.compression,
            "clip_norm": limits.clip_norm,
            "clip_value": limits.clip_value,
            "on_nonfinite": limits.on_nonfinite,
            "overlap": subject._overlap is not None,
        }
        inner = type(subject._inner), subject.defaults, _groups(subject)
        return strategy, subject.name, settings, inner

    def make(self, essence: Any, task: WorkerTask) -> DistributedOptimizer:
        strategy: AttachedStrategy
        strategy, name, settings, inner = essence
        with Attached(strategy.extended._hosting).naming(name):
            return DistributedOptimizer(_inner(*inner), **settings)

    def state(self, subject: DistributedOptimizer) -> Mapping[str, Any]:
        return {"groups": _groups(subject)}

    def update(self, made: Any, change: Change) -> None:
        groups: list[Group] = change.state.get("groups", [])
        known = len(made.param_groups)
        self.restore(made, change.state)
        for group in groups[known:]:
            made.add_param_group(_param_group(group))

    def restore(self, made: DistributedOptimizer, settings: Mapping[str, Any]) -> None:
        groups: list[Group] = settings.get("groups", [])
        for own, (hyperparameters, _) in zip(made.param_groups, groups, strict=False):
            own.update(hyperparameters)


_STEP_HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"


def _refuse_stepping(scheduler: LRScheduler) -> None:
    """Refuse a scheduler of an optimizer that does not travel itself."""
    if isinstance(scheduler.optimizer, DistributedOptimizer):
        raise FailedPreconditionError(
            f"a function on a worker server cannot use a {type(scheduler).__name__}, whose steps "
            "would be lost with it; call step() of the scheduler in the program, between "
            "functions: those that are scheduled later have the new rate"
        )


def _groups(optimizer: DistributedOptimizer) -> list[Group]:
    return [
        (hyperparameters_of(group), [_travelling(one) for one in group["params"].trained()])
        for group in optimizer.param_groups
    ]


def _travelling(trained: Trained | None) -> object:
    if trained is None:
        raise FailedPreconditionError(
            "an optimizer has a lazy parameter, which has no shape yet; call its "
            "module once on the coordinator before functions use the optimizer"
        )
    if isinstance(trained, HostedParameter):
        return trained.parameter
    return trained.variable


def _inner(cls: type[Optimizer], defaults: dict[str, Any], groups: Iterable[Group]) -> Optimizer:
    # As when torch unpickles one: constructors would fill groups in anew.
    made = cls.__new__(cls)
    param_groups = [_param_group(group) for group in groups]
    state: dict[str, Any] = {"defaults": defaults, "param_groups": param_groups}
    made.__setstate__({**state, "state": defaultdict(dict)})
    return made


def _param_group(group: Group) -> dict[str, Any]:
    hyperparameters, trained = group
    return {**hyperparameters, "params": list(map(_tensor, trained))}


def _tensor(trained: Any) -> torch.Tensor:
    return trained.value() if isinstance(trained, Variable) else trained
