"""What a `DistributedOptimizer` may wrap, and what it shares with that: groups, rules and state."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, cast

import torch
from torch._C._autograd import _profiler_enabled
from torch.autograd import profiler
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks

from stratagem._core.contexts import require_cross_replica_or_default
from stratagem._core.update_functions import require_own_step
from stratagem._core.variables import Variable
from stratagem._gradients import GroupStep
from stratagem._hosting.other_steps import DistributedSteps, have_others_hooks
from stratagem._hosting.trained_tensors import Trained, TrainedTensors
from stratagem_proto.errors import FailedPreconditionError, InvalidTypeError
from stratagem_proto.programs.optimizers import (
    OPTIMIZERS,
    OptimizerRule,
    require_honoured,
    values_of,
)

if TYPE_CHECKING:
    from stratagem._hosting.hosting import Hosting
    from stratagem._strategies.strategy import Strategy

_LEFT = "grad_scale", "found_inf"


def watch_scalers(optimizer: Any) -> None:
    """Have a `GradScaler` leave a trace in an optimizer that it steps, and its gradients as is."""
    # So an optimizer tells torch that it looks after scales itself.
    optimizer._step_supports_amp_scaling = True


def is_scaled(optimizer: Optimizer) -> bool:
    """Return whether a `GradScaler` makes the present step of an optimizer; remove its trace."""
    left = [name for name in _LEFT if name in vars(optimizer)]
    for name in left:
        delattr(optimizer, name)
    return bool(left)


Groups = Sequence[Mapping[str, Any]]
"""Param groups, with a `ReplicaParams` of "params" each."""

State = Mapping[str, Any]
"""The state for one parameter, by torch's keys."""


class Rules:
    """How the variables of one optimizer are stepped: each by itself, if nothing else is said.

    Attributes:
        are_traced: Whether that is found out by tracing.
    """

    are_traced: bool = False

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Check the hyperparameters of a param group.

        Raises:
            InvalidArgumentError: The group cannot be stepped.
        """

    def check_variables(self, group: Mapping[str, Any], hosting: Hosting) -> None:
        """Check whether the variables of a param group can be stepped where they are.

        Raises:
            InvalidArgumentError: One cannot.
            UpdateFunctionError: The optimizer does what no server can do.
        """

    def check_together(self, groups: Groups) -> None:
        """Check all param groups together, each of which was checked before.

        Raises:
            UpdateFunctionError: What is done to a variable depends on others.
        """

    def divided(self, steps: tuple[GroupStep, ...], groups: Groups) -> tuple[GroupStep, ...]:
        """Return the steps of param groups, with a group for each rule."""
        return steps

    def as_tensors(self, state: State) -> Mapping[str, torch.Tensor]:
        """Return the state of a parameter, of a state dict, as it is kept."""
        return state

    def as_local(self, groups: Groups, index: int, variable: Variable, state: State) -> State:
        """Return the state of a variable of a group as the optimizer has it locally."""
        return state


class ListedRule(Rules):
    """The rule of a class that servers know by name."""

    def __init__(self, optimizer: Optimizer, rule: OptimizerRule) -> None:
        self._optimizer, self._rule = optimizer, rule

    def check_group(self, group: Mapping[str, Any]) -> None:
        require_honoured(self._rule, values_of(self._rule, group))

    def divided(self, steps: tuple[GroupStep, ...], groups: Groups) -> tuple[GroupStep, ...]:
        require_own_step(self._optimizer)
        return steps


def refused(name: str) -> FailedPreconditionError:
    """Return the error for a change of the state of the optimizer with this name."""
    return FailedPreconditionError(
        f"the state of {name!r} lives with the variables of its strategy, and a change of "
        "optimizer.state would not reach it; change what optimizer.state_dict() returns, and "
        "hand it to optimizer.load_state_dict()"
    )


class _Refusing:
    """Methods that would change a dict; nobody would ever see the change."""

    _name: str

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise refused(self._name)

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


class _NoEntries(_Refusing, dict[str, Any]):
    """The state of one parameter."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name


class StateElsewhere(_Refusing, defaultdict[torch.Tensor, Any]):
    """An optimizer's state that is empty, and refuses to be changed.

    Like torch's own, it has something to read for each parameter.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __reduce__(self) -> tuple[type[StateElsewhere], tuple[str]]:
        return StateElsewhere, (self._name,)

    def copy(self) -> StateElsewhere:
        """Return one alike; that of `defaultdict` takes other arguments."""
        return StateElsewhere(self._name)

    __copy__ = copy

    def __missing__(self, parameter: torch.Tensor) -> dict[str, Any]:
        return _NoEntries(self._name)


_P = ParamSpec("_P")
_R = TypeVar("_R")


def rules_of(optimizer: object) -> Rules:
    """Return the rules of an optimizer that is to be wrapped.

    Raises:
        InvalidTypeError: It is no optimizer.
        InvalidArgumentError: It cannot be stepped for one gradient at a time.
    """
    if not isinstance(optimizer, Optimizer):
        raise InvalidTypeError(
            f"DistributedOptimizer wraps a torch.optim.Optimizer, not {optimizer!r}"
        )
    if isinstance(optimizer, DistributedSteps):
        raise InvalidTypeError(
            f"DistributedOptimizer wraps an optimizer of torch.optim, and the strategy makes the "
            f"steps of this {type(optimizer).__name__} already; use it as it is"
        )
    listed = OPTIMIZERS.get(type(optimizer).__name__)
    if listed is not None and listed.cls is type(optimizer):
        return ListedRule(optimizer, listed)
    # Training with a class that is listed needs nothing of it.
    from stratagem._hosting.traced_rules import TracedRules

    return TracedRules(optimizer)


def require_fresh(optimizer: Optimizer) -> None:
    """Check that an optimizer has no state yet.

    Raises:
        FailedPreconditionError: It has some.
    """
    # Adagrad makes its state when it is built.
    for state in optimizer.state.values():
        if float(state.get("step", 1)) > 0:
            raise FailedPreconditionError(
                f"the {type(optimizer).__name__} to be wrapped has state already; wrap "
                "a fresh one and give the state to DistributedOptimizer."
                "load_state_dict()"
            )


_HOOKS = [
    f"_optimizer_{of}_{when}_hooks"
    for of in ("step", "state_dict", "load_state_dict")
    for when in ("pre", "post")
]


def _refuse_state(method: str, name: str, *_args: object) -> NoReturn:
    raise FailedPreconditionError(
        f"{method}() is called of the optimizer that DistributedOptimizer {name!r} wraps, which "
        f"has no state of its own: that lives with the variables of its strategy. Call {method}() "
        "of the DistributedOptimizer"
    )


def is_recorded() -> bool:
    """Whether a profiler records what this thread does, or may do so."""
    return profiler._is_profiler_enabled or _profiler_enabled()


class OptimizerWrapper(DistributedSteps):
    """An optimizer that has groups and state in common with one that it wraps."""

    # Loading a state replaces these objects in the wrapped optimizer.
    _inner: Optimizer

    @staticmethod
    def profile_hook_step(func: Callable[_P, _R]) -> Callable[_P, _R]:
        """Return a step with the hooks of torch, which take 6 us, if there are any."""
        hooked = Optimizer.profile_hook_step(func)

        @wraps(func)
        def step(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            self = cast(OptimizerWrapper, args[0])
            return (hooked if self._is_watched else func)(*args, **kwargs)

        return step

    @property
    def _is_watched(self) -> bool:
        """Whether somebody is to be told of steps."""
        return bool(
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or have_others_hooks()
            or _global_optimizer_post_hooks
            or is_recorded()
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The param groups, those of the wrapped optimizer.

        In a replica the parameters in them are that replica's leaves.
        """
        return self._inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._inner.param_groups = groups

    @property
    def defaults(self) -> dict[str, Any]:
        """Hyperparameters of groups that do not set them."""
        return self._inner.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self._inner.defaults = defaults

    def _show_schedulers_a_step(self) -> None:
        """Tell schedulers on either optimizer that a step was made, elsewhere."""
        for optimizer in self, self._inner:
            optimizer._opt_called = True  # type: ignore[attr-defined]


class OptimizerWithSlots(OptimizerWrapper):
    """An optimizer around another, whose state is slot variables.

    Under the default strategy it is the wrapped optimizer's own.
    """

    _name: str
    _strategy: Strategy
    _tensors: TrainedTensors
    _rules: Rules
    # What an optimizer has made of it when it was built, by parameter.
    _initial_state: dict[torch.Tensor, Any]

    @property
    def _plain(self) -> bool:
        return self._tensors.plain

    @property
    def _hosting(self) -> Hosting:
        self._tensors.require_remembered()
        return cast("Hosting", self._strategy._extended._hosting)

    @property
    def state(self) -> defaultdict[torch.Tensor, Any]:
        """State that is kept here: none but under the default strategy.

        Raises:
            FailedPreconditionError: It is set or changed, under another strategy than the default.
        """
        return self._inner.state

    @state.setter
    def state(self, state: defaultdict[torch.Tensor, Any]) -> None:
        if not self._plain:
            raise refused(self._name)
        self._inner.state = state

    def _keep_state_elsewhere(self) -> None:
        # The wrapped optimizer, too: programs often have both at hand.
        self._inner.state = StateElsewhere(self._name)

    def _lead_here(self) -> None:
        """Take over the hooks of the wrapped optimizer, whose own state nobody is to mistake."""
        inner, name = self._inner, self._name
        for hooks in _HOOKS:
            setattr(self, hooks, getattr(inner, hooks))
            if "state_dict" in hooks:
                setattr(inner, hooks, OrderedDict())
        inner.register_state_dict_pre_hook(partial(_refuse_state, "state_dict", name))
        inner.register_load_state_dict_pre_hook(partial(_refuse_state, "load_state_dict", name))

    def state_dict(self) -> dict[str, Any]:
        """Return the state as the wrapped optimizer would have it locally.

        Raises:
            ContextError: A replica is running, of another strategy than the default.
        """
        if self._plain:
            return super().state_dict()
        self._require_no_replica("state_dict")
        triples = list(self._trained_by_group())
        variables = [trained.variable for _, _, trained in triples]
        found = self._hosting.slots(self._name, variables)
        states: defaultdict[torch.Tensor, Any] = defaultdict(dict)
        for (index, parameter, trained), slots in zip(triples, found, strict=True):
            local = self._rules.as_local(self.param_groups, index, trained.variable, slots)
            state = dict(local) or self._initial_state.get(parameter)
            if state:
                states[parameter] = state
        self._inner.state = states
        try:
            return super().state_dict()
        finally:
            self._keep_state_elsewhere()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace hyperparameters and state by those of a torch state dict.

        Raises:
            ContextError: A replica is running, of another strategy than the default.
        """
        if self._plain:
            super().load_state_dict(state_dict)
            return
        self._require_no_replica("load_state_dict")
        super().load_state_dict(state_dict)
        try:
            state = self._inner.state
            slots = {
                one.variable: self._rules.as_tensors(state.get(parameter, {}))
                for _, parameter, one in self._trained_by_group()
            }
            self._hosting.set_slots(self._name, slots)
        finally:
            self._keep_state_elsewhere()

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The last thing that load_state_dict does; classes fill in what older checkpoints lack.
        self._inner.__setstate__(state)

    def __reduce__(self) -> Any:
        raise InvalidTypeError(
            f"DistributedOptimizer {self._name!r} cannot be copied or pickled, because "
            "its state lives with its strategy's variables; keep its state_dict()"
        )

    def _trained_by_group(self) -> Iterator[tuple[int, torch.Tensor, Trained]]:
        for index, group in enumerate(self.param_groups):
            trained = group["params"].trained()
            for parameter, one in zip(group["params"], trained, strict=True):
                if one is not None:
                    yield index, parameter, one

    def _require_no_replica(self, method: str) -> None:
        name = f"DistributedOptimizer.{method}"
        require_cross_replica_or_default(self._strategy.extended, name)
