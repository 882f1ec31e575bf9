"""Optimizers that `torch.optim` does not have, and that parameter servers run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from stratagem_proto.programs.optimizers import RowWiseAdagrad

__all__ = ["DelayedNesterov", "RowWiseAdagrad"]


class DelayedNesterov(Optimizer):
    """SGD with Nesterov momentum that looks at the mean of several gradients.

    It is the outer optimizer of asynchronous `stratagem.LocalSteps`, where the differences of the
    workers come one after the other: momentum of each by itself lets late ones swing too far. Each
    gradient `g` moves the parameter at once, the momentum `m` follows once in `delay` of them::

        sum += g
        if this is gradient number delay, 2 * delay, ...:
            m = momentum * m + sum / delay
            sum = 0
            w -= lr * ((1 - spread * (delay - 1)) * momentum * m + g / delay)
        else:
            w -= lr * (spread * momentum * m + g / delay)

    With `delay=1` it is `torch.optim.SGD` with `nesterov=True`. A good delay is the number of
    workers.

    Args:
        params: Parameters or param groups.
        lr: The learning rate.
        momentum: The factor of the momentum of before.
        delay: How many gradients there are for each change of the momentum.
        spread: Which share of the momentum each of the others applies, 0 to 1 / `delay`.

    Raises:
        ValueError: A number is out of its range.

    References: Liu et al., Asynchronous local-SGD training for language modeling, arXiv 2401.09135,
    algorithm 3.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.7,
        momentum: float = 0.9,
        delay: int = 1,
        spread: float = 0.0,
    ) -> None:
        if not lr >= 0:
            raise ValueError(f"lr is {lr}; it must be at least 0")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum is {momentum}; it must be at least 0 and below 1")
        if delay < 1 or not 0 <= spread <= 1 / delay:
            raise ValueError(
                f"delay is {delay} and spread {spread}; they must be at least 1, and 0 to 1 / delay"
            )
        defaults = {"lr": lr, "momentum": momentum, "delay": delay, "spread": spread}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override] # torch overloads it
        """Step all parameters that have a gradient.

        Args:
            closure: Computes the loss anew and returns it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, parameter.grad, group)
        return loss

    def _step_one(
        self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]
    ) -> None:
        state, delay, spread = self.state[parameter], group["delay"], group["spread"]
        if not state:
            state["step"] = torch.zeros(())
            state["sum"] = torch.zeros_like(parameter)
            state["momentum_buffer"] = torch.zeros_like(parameter)
        step, total, momentum = state["step"], state["sum"], state["momentum_buffer"]
        step += 1
        total += gradient
        is_last = torch.remainder(step, delay) == 0
        changed = momentum * group["momentum"] + total / delay
        momentum.copy_(torch.where(is_last, changed, momentum))
        share = torch.where(is_last, 1 - spread * (delay - 1), spread)
        parameter.sub_(group["lr"] * (share * group["momentum"] * momentum + gradient / delay))
        total.copy_(torch.where(is_last, torch.zeros_like(total), total))
