"""A test whether an optimizer gives the same bytes however elements are divided into tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch

from stratagem_proto.programs.optimizers import OptimizerRule, Value
from stratagem_proto.wire.segment import starts
from stratagem_psserver.optimization.dry_run import Hyperparameters
from stratagem_psserver.optimization.single_steps import make_optimizer, take_step

# Sizes that are not multiples of the processor's vectors, and sizes from which on torch uses other
# loops.
_SIZES = (1, 3, 8, 17, 33, 100, 1037)
_STEPS = 3

# With these settings torch works in blocks that are larger than the sizes here, or on several
# tensors at a time, so the test would prove nothing.
_OTHERS = ("fused", "foreach")


def is_elementwise(rule: OptimizerRule, values: Mapping[str, Value], dtype: torch.dtype) -> bool:
    """Return whether a step of joint parameters gives the same bytes on this machine.

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
