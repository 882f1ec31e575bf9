"""Comparisons with torch: where another way of a step gives the same bytes on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import torch

from stratagem_proto.programs.optimizers import OptimizerRule, RowWiseAdagrad, Value, step_rows
from stratagem_proto.wire.segment import starts
from stratagem_psserver.optimization.gradients import as_sparse
from stratagem_psserver.optimization.torch_rules import Hyperparameters, make_optimizer, take_step

# Sizes that are not multiples of the processor's vectors, and sizes from which on torch uses other
# loops.
_SIZES = (1, 3, 8, 17, 33, 100, 1037)
_STEPS = 3

# With these settings torch works in blocks that are larger than the sizes here, or on several
# tensors at a time, so the test would prove nothing.
_OTHERS = ("fused", "foreach")


def is_elementwise(rule: OptimizerRule, values: Mapping[str, Value], dtype: torch.dtype) -> bool:
    """Return whether a step of joint parameters gives the same bytes on this machine.

    It is measured, since a class of torch.optim is no graph that could be read. Which elements a
    traced rule uses is read off its graph instead, by `stratagem_proto.programs.traced_rules`.

    Args:
        rule: The optimizer.
        values: Hyperparameters of a param group, which a dry run has accepted.
        dtype: The dtype of the parameters.
    """
    if dtype not in (torch.float32, torch.float64) or any(map(values.get, _OTHERS)):
        return False
    # Schedulers change the learning rate at each step, so it is no key of the cache.
    rest = tuple(sorted((key, value) for key, value in values.items() if key != "lr"))
    return _is_elementwise(rule, rest, dtype)


@lru_cache(maxsize=1024)
def _is_elementwise(rule: OptimizerRule, rest: Hyperparameters, dtype: torch.dtype) -> bool:
    places, room = starts([size * dtype.itemsize for size in _SIZES])
    begins = [place // dtype.itemsize for place in places]
    generator = torch.Generator().manual_seed(0)

    def drawn() -> torch.Tensor:
        return torch.randn(room // dtype.itemsize, dtype=dtype, generator=generator)

    def apart(whole: torch.Tensor) -> list[torch.Tensor]:
        ends = zip(begins, _SIZES, strict=True)
        # Each is one row, so that rules by rows differ.
        return [whole[begin : begin + size].clone().unsqueeze(0) for begin, size in ends]

    value = drawn()
    parts, gradients = apart(value), [drawn() for _ in range(_STEPS)]
    values = {"lr": 0.1, **dict(rest)}
    _step(rule, values, [value], [[each] for each in gradients])
    _step(rule, values, parts, list(map(apart, gradients)))
    return all(map(_are_same, apart(value), parts))


def _step(
    rule: OptimizerRule,
    values: Mapping[str, Value],
    parameters: list[torch.Tensor],
    steps: Sequence[Sequence[torch.Tensor]],
) -> None:
    optimizer = make_optimizer(rule, values, parameters)
    optimizer.param_groups[0]["params"] = parameters
    for gradients in steps:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        take_step(optimizer, sparse=False)


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


# Rules that step the rows of a sparse gradient with the same bytes as optimizers of torch. torch
# makes a sparse tensor of every term that it adds, and finds rows again by a mask, which takes much
# of the time of a step. Each rule is compared with torch on the machine that it runs on, and used
# only if all bytes are the same.

State: TypeAlias = Mapping[str, torch.Tensor]

SparseRule: TypeAlias = Callable[[Mapping[str, Value], torch.Tensor, torch.Tensor, State], None]
"""Steps rows and their state; takes hyperparameters, the rows, their gradient and their state."""

# Numbers of rows, and of elements per row, from which on torch uses other loops.
_SHAPES = ((1, 1), (1, 3), (3, 8), (17, 4), (100, 33), (1037, 16))
# With these settings torch uses other implementations, with which the rules are not compared.
_UNCOMPARED = ("fused", "foreach", "maximize", "differentiable")


def sparse_rule(
    rule: OptimizerRule, values: Mapping[str, Value], dtype: torch.dtype
) -> SparseRule | None:
    """Return a rule that gives the same bytes as torch's step of a sparse gradient.

    Args:
        rule: The optimizer.
        values: Hyperparameters of a param group, which a dry run with a sparse gradient accepted.
        dtype: The dtype of the parameters.

    Returns:
        The rule; None if torch has to do the step.
    """
    found = _RULES.get(rule.cls)
    is_plain = dtype in (torch.float32, torch.float64)
    if found is None or not is_plain or any(map(values.get, _UNCOMPARED)):
        return None
    # Schedulers change the learning rate at each step, so it is no key of the cache.
    rest = tuple(sorted((key, value) for key, value in values.items() if key != "lr"))
    return found if _is_same(rule, rest, dtype) else None


def is_joinable(rule: OptimizerRule, values: Mapping[str, Value], dtype: torch.dtype) -> bool:
    """Return whether rows of several variables have the same bytes if they are stepped as one.

    Args:
        rule: An optimizer for which there is a `sparse_rule`.
        values: As for `sparse_rule`.
        dtype: The dtype of the parameters.
    """
    rest = tuple(sorted((key, value) for key, value in values.items() if key != "lr"))
    return rule.cls in _RULES and _is_same_apart(rule, rest, dtype)


def _sgd(values: Mapping[str, Value], rows: torch.Tensor, gradient: torch.Tensor, _: State) -> None:
    rows.add_(gradient, alpha=-_number(values, "lr"))


def _adagrad(
    values: Mapping[str, Value], rows: torch.Tensor, gradient: torch.Tensor, state: State
) -> None:
    scratch, sums = gradient.pow(2), state["sum"]
    steps = state["step"].add_(1).item() - 1
    rate = _number(values, "lr") / (1 + steps * _number(values, "lr_decay"))
    deviation = torch.sqrt(sums.add_(scratch), out=scratch).add_(_number(values, "eps"))
    rows.add_(torch.div(gradient, deviation, out=scratch), alpha=-rate)


def _row_wise_adagrad(
    values: Mapping[str, Value], rows: torch.Tensor, gradient: torch.Tensor, state: State
) -> None:
    sums = state["sum"]
    if count := len(sums):
        step_rows(rows.view(count, -1), gradient.view(count, -1), sums, values)


def _number(values: Mapping[str, Value], key: str) -> float:
    value = values[key]
    assert isinstance(value, (int, float))
    return value


_RULES: Mapping[type[torch.optim.Optimizer], SparseRule] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adagrad: _adagrad,
    RowWiseAdagrad: _row_wise_adagrad,
}


@lru_cache(maxsize=1024)
def _is_same(rule: OptimizerRule, rest: Hyperparameters, dtype: torch.dtype) -> bool:
    generator, values = torch.Generator().manual_seed(0), {"lr": 0.1, **dict(rest)}
    for shape in _SHAPES:
        drawn = torch.randn(1 + _STEPS, *shape, dtype=dtype, generator=generator)
        value, *gradients = drawn.unbind()
        ours, theirs = _Trial(rule, values, value), _Trial(rule, values, value)
        for gradient in gradients:
            _RULES[rule.cls](values, ours.value, gradient, ours.state)
            theirs.step(gradient)
        if not ours.agrees(theirs):
            return False
    return True


@lru_cache(maxsize=1024)
def _is_same_apart(rule: OptimizerRule, rest: Hyperparameters, dtype: torch.dtype) -> bool:
    generator, values = torch.Generator().manual_seed(0), {"lr": 0.1, **dict(rest)}
    return all(
        _are_same_apart(rule, values, width, dtype, generator) for width in (1, _SHAPES[-1][1])
    )


def _are_same_apart(
    rule: OptimizerRule,
    values: Mapping[str, Value],
    width: int,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> bool:
    sizes = [max(1, rows * columns // width) for rows, columns in _SHAPES]
    joint = torch.randn(1 + _STEPS, sum(sizes), width, dtype=dtype, generator=generator)
    value, *gradients = joint.unbind()
    whole = _Trial(rule, values, value)
    parts = [_Trial(rule, values, part) for part in value.split(sizes)]
    for gradient in gradients:
        _RULES[rule.cls](values, whole.value, gradient, whole.state)
        for part, of_part in zip(parts, gradient.split(sizes), strict=True):
            _RULES[rule.cls](values, part.value, of_part, part.state)
    each = zip(whole.value.split(sizes), parts, strict=True)
    return all(_are_same_bytes(ours, part.value) for ours, part in each)


def _are_same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(*(each.flatten().view(torch.uint8) for each in (one, other)))


class _Trial:
    """A parameter with an optimizer that has taken a step, to compare a rule with torch."""

    def __init__(
        self, rule: OptimizerRule, values: Mapping[str, Value], value: torch.Tensor
    ) -> None:
        self.value = value.clone()
        self._optimizer = make_optimizer(rule, values, [self.value])
        self._optimizer.param_groups[0]["params"] = [self.value]
        # Not every class makes its state when it is built.
        self.step(torch.ones_like(value))

    @property
    def state(self) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self._optimizer.state[self.value]
        return state

    def step(self, gradient: torch.Tensor) -> None:
        places = torch.arange(len(gradient)).unsqueeze(0)
        shape = self.value.shape
        self.value.grad = as_sparse(places, gradient, shape, is_coalesced=True)
        take_step(self._optimizer, sparse=True)

    def agrees(self, other: _Trial) -> bool:
        """Return whether all bytes are the same."""
        if self.state.keys() != other.state.keys():
            return False
        pairs = [(each, other.state[key]) for key, each in self.state.items()]
        pairs.append((self.value, other.value))
        return all(_are_same_bytes(*pair) for pair in pairs)
