"""The state of an optimizer that a worker steps by itself, as it is kept elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from stratagem._hosting.other_steps import leave_to_own_steps
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

# What only devices of some kinds can do.
_DEVICE_FLAGS = ("fused", "capturable", "foreach")


def on_cpu(
    optimizer: Optimizer, state: Mapping[str, Any], device: str = "cpu"
) -> dict[str, torch.Tensor]:
    """Return the state of a parameter as it is kept, without what is None.

    Raises:
        InvalidTypeError: There is something else than tensors.
    """
    found = {}
    for key, value in state.items():
        if value is None:
            continue
        if not isinstance(value, torch.Tensor) or "/" in key or "+" in key:
            raise InvalidTypeError(
                f"{key!r} in the state of {type(optimizer).__name__} is a {type(value).__name__}, "
                "and keep_state keeps tensors, under names without '/' and '+'; leave keep_state "
                "out, and keep the state_dict() of LocalSteps yourself"
            )
        found[key] = value.detach().to(device).contiguous()
    return found


def shapes_of_state(optimizer: Optimizer) -> dict[Parameter, dict[str, torch.Tensor]]:
    """Return tensors as the state of each parameter will have after a step, without their values.

    A copy takes a step to find out, without memory where the optimizer lets that be.

    Raises:
        InvalidTypeError: There will be something else than tensors.
        InvalidArgumentError: A copy of the optimizer cannot step.
    """
    error: Exception | None = None
    for device in ("meta", "cpu"):
        try:
            return _stepped(optimizer, device)
        except InvalidTypeError:
            raise
        except Exception as one:
            error = one
    raise InvalidArgumentError(
        f"a copy of {type(optimizer).__name__} could not take a step, which shows what state it "
        f"will have: {error}; leave keep_state out"
    ) from error


def _stepped(optimizer: Optimizer, device: str) -> dict[Parameter, dict[str, torch.Tensor]]:
    probe = stepped_copy(optimizer, device)
    pairs = zip(_parameters(optimizer), _parameters(probe), strict=True)
    return {
        one: on_cpu(optimizer, probe.state.get(made, {}) if one.requires_grad else {}, device)
        for one, made in pairs
    }


def stepped_copy(optimizer: Optimizer, device: str = "cpu") -> Optimizer:
    """Return a copy that has taken a step of other parameters, so that it has all of its state."""
    own = _parameters(optimizer)
    copies = [Parameter(torch.zeros_like(one, device=device)) for one in own]
    probe = copy.deepcopy(optimizer, {id(one): made for one, made in zip(own, copies, strict=True)})
    leave_to_own_steps(probe, "copy")
    for group in probe.param_groups:
        group.update({flag: False for flag in _DEVICE_FLAGS if flag in group})
    for state in probe.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim():
                state[key] = value.to(device)
    for made in copies:
        made.grad = torch.zeros_like(made)
    probe.step()
    return probe


def _parameters(optimizer: Optimizer) -> list[Parameter]:
    return [one for group in optimizer.param_groups for one in group["params"]]
