"""Adagrad with a single accumulator for each row, which `torch.optim` does not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

_NOT_NEGATIVE: Final = ("lr", "eps", "weight_decay")


class RowWiseAdagrad(Optimizer):
    """Adagrad that keeps one number for each row of a parameter, in place of one for each element.

    It is `EXACT_ROWWISE_ADAGRAD` of FBGEMM (`rowwise_adagrad` in `fbgemm_gpu/codegen/genscript/
    optimizers.py`), with which TorchRec trains large tables. For a row `w` with the gradient `g`::

        sum += mean((g + weight_decay * w) ** 2)
        multiplier = lr / (sqrt(sum) + eps)
        w = (1 - multiplier * weight_decay) * w - multiplier * g

    A row is what one index of the first dimension selects; of a vector, and of a scalar, each
    element is a row, and the rule is that of `torch.optim.Adagrad`. A sparse gradient steps the
    rows that it has and leaves the others alone, weight decay included.

    Args:
        params: Parameters or param groups.
        lr: The learning rate.
        eps: Added to the root, against division by zero.
        weight_decay: The factor of an L2 penalty.
        maximize: Whether to step along the gradient, and not against it.

    Raises:
        ValueError: A number is negative or no number.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-2,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        for name in _NOT_NEGATIVE:
            if not defaults[name] >= 0:
                raise ValueError(f"{name} is {defaults[name]}; it must be at least 0")
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
                    self._step_one(parameter, group)
        return loss

    def _step_one(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if not state:
            state["sum"] = parameter.new_zeros(parameter.shape[:1])
        if not gradient.is_sparse:
            step_rows(parameter, gradient, state["sum"], group)
            return
        gradient = gradient.coalesce()
        (rows,) = gradient.indices()
        values, sums = parameter.index_select(0, rows), state["sum"].index_select(0, rows)
        step_rows(values, gradient.values(), sums, group)
        parameter.index_copy_(0, rows, values)
        state["sum"].index_copy_(0, rows, sums)


def step_rows(
    rows: torch.Tensor, gradient: torch.Tensor, sums: torch.Tensor, group: Mapping[str, Any]
) -> None:
    """Step rows and their sums in place; `group` has the hyperparameters.

    No operation multiplies and adds at once: torch rounds those differently for the last elements
    of a tensor, so parts of a parameter would come to other bytes than all of it.
    """
    decay = group["weight_decay"]
    if group["maximize"]:
        gradient = -gradient
    squares = (gradient + rows * decay if decay else gradient).square()
    sums.add_(squares.flatten(1).mean(1) if rows.dim() > 1 else squares)
    multiplier = group["lr"] / sums.sqrt().add_(group["eps"])
    multiplier = multiplier.view(-1, *[1] * (rows.dim() - 1)) if rows.dim() > 1 else multiplier
    if decay:
        rows.mul_(1 - multiplier * decay)
    rows.sub_(gradient * multiplier)
