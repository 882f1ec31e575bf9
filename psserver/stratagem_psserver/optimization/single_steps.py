"""Objects of `torch.optim` that each make a single step."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from stratagem_proto.programs.optimizers import OptimizerRule, TypedNumber, Value


class SteppingOptimizer(Protocol):
    """What a step needs of an optimizer."""

    def step(self) -> Any: ...


_GUARDED = ("step", "add_param_group")
_AS_IT_IS: AbstractContextManager[None] = nullcontext()


def make_optimizer(
    rule: OptimizerRule, values: Mapping[str, Value], fresh: list[torch.Tensor]
) -> Optimizer:
    """Return an optimizer of one param group with these hyperparameters.

    Args:
        rule: The class of the optimizer.
        values: Hyperparameters of the group.
        fresh: Parameters without state. Adagrad makes their state in its constructor.
    """
    accepted = _keywords(rule)
    made = {
        key: value.made() if isinstance(value, TypedNumber) else value
        for key, value in values.items()
    }
    arguments: dict[str, Any] = {key: value for key, value in made.items() if key in accepted}
    optimizer = _without_compiler(rule)(fresh or [torch.empty(0)], **arguments)
    # AdamW has hyperparameters that its constructor does not take.
    optimizer.param_groups[0].update(made)
    return optimizer


class Prototype:
    """Makes optimizers with the same hyperparameters.

    Each step has an optimizer of its own, since several steps may run at once. It is a copy of the
    first one, because the constructor would check the hyperparameters again.

    Args:
        rule: The class of the optimizers.
        values: Hyperparameters of their param group, which a dry run has accepted.
    """

    def __init__(self, rule: OptimizerRule, values: Mapping[str, Value]) -> None:
        self._rule, self._values = rule, values
        self._first = make_optimizer(rule, values, [])
        group = self._first.param_groups[0]
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            # torch would choose this at each step for tensors in the memory of the CPU.
            group["foreach"] = False

    def optimizer(self, parameters: list[torch.Tensor], fresh: list[torch.Tensor]) -> Optimizer:
        """Return an optimizer of some parameters; the caller sets the state of those that have any.

        Args:
            parameters: All parameters.
            fresh: The parameters without state.
        """
        if self._first.state and fresh:
            # The constructor of this class makes the state of parameters.
            made = make_optimizer(self._rule, self._values, fresh)
        else:
            made = object.__new__(type(self._first))
            vars(made).update(vars(self._first))
            made.state = defaultdict(dict)
        made.param_groups = [{**self._first.param_groups[0], "params": parameters}]
        return made


def take_step(optimizer: SteppingOptimizer, sparse: bool) -> None:
    """Call an optimizer's step, without the process's hooks and without ranges for profilers.

    Args:
        optimizer: The optimizer.
        sparse: Whether a gradient is sparse. Its rows were checked when it arrived, so the checks
            of torch are left out, which would warn.
    """
    kind: Any = type(optimizer)
    with torch.no_grad(), _unchecked() if sparse else _AS_IT_IS:
        _plain_step(kind)(optimizer)


@cache
def _plain_step(kind: type[Any]) -> Callable[[Any], object]:
    plain: Callable[[Any], object] = inspect.unwrap(kind.step)
    return plain


def _unchecked() -> AbstractContextManager[None]:
    unchecked = torch.sparse.check_sparse_tensor_invariants
    return unchecked(False)  # type: ignore[no-untyped-call]  # torch has no type for it


@cache
def _keywords(rule: OptimizerRule) -> frozenset[str]:
    return frozenset(inspect.signature(rule.cls.__init__).parameters)


@cache
def _without_compiler(rule: OptimizerRule) -> type[Optimizer]:
    """Return the class of a rule without its support of `torch.compile`.

    The first object of the original class imports the compiler, which would cost each server
    process much time and memory.
    """
    methods = {name: inspect.unwrap(getattr(rule.cls, name)) for name in _GUARDED}
    return type(rule.cls.__name__, (rule.cls,), methods)
