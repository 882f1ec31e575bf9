"""What a `DistributedOptimizer` may wrap, and what it shares with that."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from torch._C._autograd import _profiler_enabled
from torch.autograd import profiler
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks

from stratagem._hosting.modules.plain_optimizers import DistributedSteps, have_others_hooks
from stratagem._hosting.optimizers.rules import ListedRule, Rules
from stratagem_proto.errors import FailedPreconditionError, InvalidTypeError
from stratagem_proto.programs.optimizers import OPTIMIZERS, OptimizerRule

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _listed_rule_of(optimizer: object) -> OptimizerRule | None:
    """Return the rule of an optimizer whose class servers know by name; None of any other.

    Raises:
        InvalidTypeError: It is no optimizer.
    """
    if not isinstance(optimizer, Optimizer):
        raise InvalidTypeError(
            f"DistributedOptimizer wraps a torch.optim.Optimizer, not {optimizer!r}"
        )
    rule = OPTIMIZERS.get(type(optimizer).__name__)
    return rule if rule is not None and rule.cls is type(optimizer) else None


def rules_of(optimizer: object) -> Rules:
    """Return the rules of an optimizer that is to be wrapped.

    Raises:
        InvalidTypeError: It is no optimizer.
        InvalidArgumentError: It cannot be stepped for one gradient at a time.
    """
    listed = _listed_rule_of(optimizer)
    if listed is not None:
        return ListedRule(listed)
    # Training with a class that is listed needs nothing of it.
    from stratagem._hosting.optimizers.traced_rules import TracedRules

    assert isinstance(optimizer, Optimizer)
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
