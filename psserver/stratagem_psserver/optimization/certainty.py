"""Whether a step of torch may fail once it has begun.

torch computes with hyperparameters and counts of steps as numbers of Python. Some come to a
division by zero, or to a number that the type of a tensor does not have, when a few tensors are
written already. Within what is ordinary no rule's numbers do.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch

from stratagem_proto.programs.optimizers import OptimizerRule, Value
from stratagem_psserver.optimization.single_steps import make_optimizer

# The largest float16 is 65504, which a rate over a small bias correction passes.
_WIDE = frozenset({torch.float32, torch.float64, torch.bfloat16})

# The least difference of a decay to 1 is 1e-16: the largest rate over it still fits all wide types.
# ASGD raises a product of three numbers to the power of alpha.
_LARGEST = 1e6
_LARGEST_OF = {"alpha": 8.0}

# The numbers that optimizers keep beside tensors of the parameter's shape, and the largest that is
# ordinary.
NUMBERS = {"step": 2.0**53, "mu_product": 1.0, "mu": 1.0, "eta": _LARGEST}


def are_ordinary(rule: OptimizerRule, values: Mapping[str, Value], dtype: torch.dtype) -> bool:
    """Return whether no step with such hyperparameters fails for its numbers.

    Args:
        rule: The optimizer.
        values: Hyperparameters of a param group, which its constructor accepts.
        dtype: Of the parameters.
    """
    defaults = _defaults(rule)
    return dtype in _WIDE and all(
        _is_like(value, defaults.get(key), _LARGEST_OF.get(key, _LARGEST))
        for key, value in values.items()
    )


def is_ordinary_state(key: str, number: float) -> bool:
    """The same of a number of an optimizer's state, which a client may have written.

    Args:
        key: One of `NUMBERS`.
        number: It.
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
