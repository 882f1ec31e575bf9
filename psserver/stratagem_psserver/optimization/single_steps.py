"""Objects of `torch.optim` that take a single step each."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch.optim import Optimizer

from stratagem_proto.programs.optimizers import OptimizerRule, Value

_GUARDED = ("step", "add_param_group")
_AS_IT_IS: AbstractContextManager[None] = nullcontext()


def make_optimizer(
    rule: OptimizerRule, values: Mapping[str, Value], fresh: list[torch.Tensor]
) -> Optimizer:
    """An optimizer of one param group with these hyperparameters.

    Args:
        rule: The class to make.
        values: Hyperparameters of the group.
        fresh: Parameters without state. Adagrad gives them theirs at once.
    """
    accepted = _keywords(rule)
    arguments: dict[str, Any] = {key: value for key, value in values.items() if key in accepted}
    optimizer = _without_compiler(rule)(fresh or [torch.empty(0)], **arguments)
    # AdamW has hyperparameters that its constructor does not take.
    optimizer.param_groups[0].update(values)
    return optimizer


class Prototype:
    """Makes the optimizers of steps with the same hyperparameters.

    Each step has one of its own, since several may be taken at once. They are copies: the
    constructor would check again what it has accepted before.

    Args:
        rule: Their class.
        values: Hyperparameters of their one param group, which a step was tried with.
    """

    def __init__(self, rule: OptimizerRule, values: Mapping[str, Value]) -> None:
        self._rule, self._values = rule, values
        self._first = make_optimizer(rule, values, [])
        group = self._first.param_groups[0]
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            # torch would decide so each time for tensors in the memory of processors.
            group["foreach"] = False

    def optimizer(self, parameters: list[torch.Tensor], fresh: list[torch.Tensor]) -> Optimizer:
        """An optimizer of some parameters; give it the state of those that have any.

        Args:
            parameters: All of them.
            fresh: Those without state.
        """
        if self._first.state and fresh:
            # Its constructor begins the state of parameters.
            made = make_optimizer(self._rule, self._values, fresh)
        else:
            made = object.__new__(type(self._first))
            vars(made).update(vars(self._first))
            made.state = defaultdict(dict)
        made.param_groups = [{**self._first.param_groups[0], "params": parameters}]
        return made


def take_step(optimizer: Optimizer, sparse: bool) -> None:
    """Step, without ranges for profilers and hooks of the process.

    Args:
        optimizer: What steps.
        sparse: Whether a gradient is sparse. Its rows were checked when it came, so the checks that
            torch would warn about are left out.
    """
    kind: Any = type(optimizer)
    with torch.no_grad(), _unchecked() if sparse else _AS_IT_IS:
        _plain_step(kind)(optimizer)


@cache
def _plain_step(kind: type[Any]) -> Callable[[Optimizer], object]:
    plain: Callable[[Optimizer], object] = inspect.unwrap(kind.step)
    return plain


def _unchecked() -> AbstractContextManager[None]:
    unchecked = torch.sparse.check_sparse_tensor_invariants
    return unchecked(False)  # type: ignore[no-untyped-call]  # torch has no type for it


@cache
def _keywords(rule: OptimizerRule) -> frozenset[str]:
    return frozenset(inspect.signature(rule.cls.__init__).parameters)


@cache
def _without_compiler(rule: OptimizerRule) -> type[Optimizer]:
    """Return the class of a rule without what it does for `torch.compile`.

    The original imports the compiler with its first object, which costs each server process more
    than a second of processor time and some 70 MB.
    """
    methods = {name: inspect.unwrap(getattr(rule.cls, name)) for name in _GUARDED}
    return type(rule.cls.__name__, (rule.cls,), methods)
