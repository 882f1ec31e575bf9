"""Losses that a `GradScaler` of torch scales, and the gradients with them."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

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
