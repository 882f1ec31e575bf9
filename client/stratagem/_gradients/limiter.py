"""Keeping one optimizer's gradients within limits, where all of them are here."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch.optim import Optimizer

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.gradient_limits import GradientLimits

_LOG = logging.getLogger("stratagem")


class Limiter:
    """Screens and clips gradients, and counts the steps that it drops."""

    def __init__(self, limits: GradientLimits) -> None:
        self.limits = limits
        self.rejected_steps: int = 0

    def require_none(self, what: str) -> None:
        """Refuse what excludes limits if there are any."""
        if self.limits:
            raise InvalidArgumentError(
                f"{what} sends gradients before all of a step are there, so that they "
                "cannot be kept within limits; leave it out, or clip_norm, clip_value "
                "and on_nonfinite"
            )

    def limited(self, gradients: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor] | None:
        """Return reduced gradients, all of a step, within the limits.

        Args:
            gradients: Dense or `torch.sparse_coo`, by variable; they stay as they are.

        Returns:
            None if the step is dropped.

        Raises:
            NonFiniteGradientError: One is not finite, and the limits want no such.
        """
        if not self.limits:
            return gradients
        whole = {name: _with_distinct_rows(each) for name, each in gradients.items()}
        values = {name: _values(each) for name, each in whole.items()}
        within = self.limits.apply(values)
        if within is None:
            self._drop(self.limits.offender(values))
            return None
        return {name: _with_values(whole[name], each) for name, each in within.items()}

    def own_part(
        self, gradients: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], str]:
        """Return this worker's part of what is clipped where it is added up.

        With it comes the name of a variable because of which the step is to be dropped or to
        fail; "" if there is none.
        """
        values = {name: _values(each) for name, each in gradients.items()}
        if offender := self.limits.offender(values):
            return {}, offender
        zeroed = self.limits.zeroed(values).items()
        return {name: _with_values(gradients[name], each) for name, each in zeroed}, ""

    def step_alone(self, optimizer: Optimizer) -> None:
        """Have an optimizer step its parameters here, on gradients within the limits.

        As by torch's own clipping, the gradients are limited themselves.
        """
        groups = [group["params"] for group in optimizer.param_groups]
        parameters = [p for group in groups for p in group if p.grad is not None]
        if self.limits:
            numbered = {f"parameter {i}": p.grad for i, p in enumerate(parameters)}
            limited = self.limited(numbered)
            if limited is None:
                return
            for parameter, gradient in zip(parameters, limited.values(), strict=True):
                parameter.grad = gradient
        optimizer.step()

    def _drop(self, variable: str) -> None:
        self.rejected_steps += 1
        _LOG.warning("A step is dropped: the gradient of %r has NaN or infinities.", variable)


def _with_distinct_rows(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce() if gradient.is_sparse else gradient


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient._values() if gradient.is_sparse else gradient


def _with_values(gradient: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if not gradient.is_sparse:
        return values
    return torch.sparse_coo_tensor(
        gradient._indices(),
        values,
        gradient.shape,
        check_invariants=False,
        is_coalesced=gradient.is_coalesced(),
    )
