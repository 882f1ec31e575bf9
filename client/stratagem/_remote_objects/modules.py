"""Modules and optimizers as workers have them, and the list of all that stays there."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stratagem._core.variables import Variable
from stratagem._gradients import hyperparameters_of
from stratagem._hosting.adoption import refresh_first
from stratagem._hosting.hosted_parameter import HostedParameter
from stratagem._hosting.hosting import Attached, hosting_of
from stratagem._hosting.optimizer import DistributedOptimizer
from stratagem._hosting.torch_patches import Following, plain_class
from stratagem._hosting.trained_tensors import Trained
from stratagem._parameter_server.attached import AttachedStrategy
from stratagem._remote_objects.variables import (
    ExtendedKind,
    ParameterKind,
    ResolverKind,
    ShardedVariableKind,
    StrategyKind,
    VariableKind,
    require_no_hooks,
    require_own,
)
from stratagem._shipping.kinds import (
    Change,
    ChangingKind,
    KindTable,
    PlainResultKind,
    ResultKind,
    WorkerTask,
)
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError

_PARAMETERS, _BUFFERS, _MODULES = "_parameters", "_buffers", "_modules"
_HOOKS = "_state_dict_pre_hooks"
_ATTRIBUTE, _BUFFER = "attribute ", "buffer "


class ModuleKind(ChangingKind):
    """A module that was built in the strategy's scope, or a part of one.

    Attributes and buffers travel when they change on the coordinator, each by itself. A worker
    keeps what its functions make of the others, such as running statistics. But whether the module
    trains or evaluates is for the program to say, and for each function by itself.
    """

    name = "module"
    types = (nn.Module,)
    settings = frozenset({_ATTRIBUTE + "training"})

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        hosting = hosting_of(strategy.extended)
        assert hosting is not None
        adopted = hosting.adopter.has_adopted(value)
        return value if adopted and _pickles_its_attributes(value) else None

    def label(self, subject: nn.Module) -> str:
        return f"module {type(subject).__name__}"

    def essence(self, subject: nn.Module, strategy: Strategy) -> Any:
        return strategy, plain_class(subject)

    def make(self, essence: Any, task: WorkerTask) -> nn.Module:
        _, cls = essence
        made: nn.Module = cls.__new__(cls)
        return made

    def state(self, subject: nn.Module) -> Mapping[str, Any]:
        own = _attributes(subject)
        found = {_PARAMETERS: own.pop(_PARAMETERS).copy(), _MODULES: own.pop(_MODULES).copy()}
        buffers = own.pop(_BUFFERS).copy()
        found[_BUFFERS] = tuple(buffers)
        found |= {_BUFFER + key: buffer for key, buffer in buffers.items()}
        return found | {
            _ATTRIBUTE + key: value
            for key, value in own.items()
            if key not in _FRESH or value != _FRESH[key]
        }

    def update(self, made: Any, change: Change) -> None:
        strategy: AttachedStrategy = change.essence[0]
        device = strategy.extended._hosting.devices[0]
        fresh = _fresh()
        whole = _attributes(made) if made.__dict__ else fresh
        for name in _named(dict.fromkeys(change.removed), _ATTRIBUTE):
            del made.__dict__[name], whole[name]
            whole |= {name: fresh[name]} if name in fresh else {}
        whole |= _named(change.state, _ATTRIBUTE)
        for key in _PARAMETERS, _MODULES:
            whole[key] = change.state.get(key, whole.get(key))
        whole[_BUFFERS] = _buffers(whole.get(_BUFFERS, {}), change.state, device)
        made.__setstate__(whole)
        Attached(strategy.extended._hosting).module(made)

    def restore(self, made: nn.Module, settings: Mapping[str, Any]) -> None:
        training = settings.get(_ATTRIBUTE + "training", True)
        if made.training is not training:
            made.training = training


def _pickles_its_attributes(module: nn.Module) -> bool:
    cls = type(module)
    plain = cls.__reduce_ex__ is object.__reduce_ex__ and cls.__reduce__ is object.__reduce__
    return plain or isinstance(module, Following)


def _fresh() -> dict[str, Any]:
    """Return the attributes of a module of which nothing is known."""
    return dict(nn.Module().__dict__)


# To compare with; what is put into a module is made anew.
_FRESH = _fresh()


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return what pickle would keep of a module, less what its strategy put there."""
    _, _, state, *_ = cast("tuple[Any, ...]", module.__reduce_ex__(2))
    found = dict(state)
    found[_HOOKS] = OrderedDict(
        (key, hook) for key, hook in found[_HOOKS].items() if hook is not refresh_first
    )
    return found


def _named(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the part of a state whose keys begin with a prefix, without the prefix."""
    return {
        key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)
    }


def _buffers(
    earlier: Mapping[str, Tensor | None], state: Mapping[str, Any], device: torch.device
) -> dict[str, Tensor | None]:
    """Return the buffers of a module, those that changed in place where they fit."""
    new = _named(state, _BUFFER)
    keys = state.get(_BUFFERS, tuple(earlier))
    return {
        key: _brought(earlier.get(key), new[key], device) if key in new else earlier[key]
        for key in keys
    }


def _brought(earlier: Tensor | None, new: Tensor | None, device: torch.device) -> Tensor | None:
    if new is None or earlier is None:
        return new if new is None else new.to(device)
    if (earlier.shape, earlier.dtype) != (new.shape, new.dtype):
        return new.to(device)
    with torch.no_grad():
        return earlier.copy_(new)


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
