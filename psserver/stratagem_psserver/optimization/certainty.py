"""Bounds of hyperparameters and state within which a step cannot fail once it has begun.

torch computes with hyperparameters and counts of steps as Python numbers. Extreme ones lead to a
division by zero, or to a number that a tensor's dtype cannot represent, after some tensors have
been written. Numbers within the bounds of this module, called ordinary, do not, for any rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch

from stratagem_proto.programs.optimizers import OptimizerRule, Value
from stratagem_psserver.optimization.single_steps import make_optimizer

# float16 is not among them: its largest number is 65504, and a rate divided by a small bias
# correction can be larger.
_WIDE = frozenset({torch.float32, torch.float64, torch.bfloat16})

# The least difference between a decay and 1 is 1e-16; the largest rate divided by it still fits all
# wide dtypes. ASGD raises a product of three numbers to the power of alpha.
_LARGEST = 1e6
_LARGEST_OF = {"alpha": 8.0}

# The scalars in the state of optimizers, and the largest ordinary number of each.
NUMBERS = {"step": 2.0**53, "mu_product": 1.0, "mu": 1.0, "eta": _LARGEST}


def are_ordinary(rule: OptimizerRule, values: Mapping[str, Value], dtype: torch.dtype) -> bool:
    """Return whether hyperparameters are ordinary, so that no step fails because of them.

    Args:
        rule: The optimizer.
        values: Hyperparameters of a param group, which its constructor accepts.
        dtype: The dtype of the parameters.
    """
    defaults = _defaults(rule)
    return dtype in _WIDE and all(
        _is_like(value, defaults.get(key), _LARGEST_OF.get(key, _LARGEST))
        for key, value in values.items()
    )


def is_ordinary_state(key: str, number: float) -> bool:
    """Return whether a number of an optimizer's state is ordinary; clients can write any.

    Args:
        key: One of `NUMBERS`.
        number: The number.
    """
    return 0 <= number <= NUMBERS[key]


@cache
def _defaults(rule: OptimizerRule) -> Mapping[str, object]:
    return make_optimizer(rule, {}, []).param_groups[0]


def _is_like(value: Value, default: object, largest: float) -> bool:
    if default is None or isinstance(default, bool):
        return value is None or isinstance(value, bool)
    if isinstance(default, tuple):
        is_pair = isinstance(value, tuple) and len(value) == len(default)
        return is_pair and all(-largest <= each <= largest for each in value)  # type: ignore[union-attr]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and -largest <= value <= largest  # type: ignore[operator]
