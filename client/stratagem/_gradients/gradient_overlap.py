"""Where gradients go that do not wait for their step."""

from __future__ import annotations

from typing import Protocol

import torch

from stratagem._core.variables.variable import Variable


class GradientOverlap(Protocol):
    """Takes the gradients of one optimizer while they come into being."""

    def add(self, variable: Variable, gradient: torch.Tensor, group: int) -> None:
        """Take in a gradient that is final.

        Args:
            variable: The variable.
            gradient: Dense, of its shape; not changed before `discard`.
            group: Number of its param group.
        """

    def discard(self) -> None:
        """Begin anew."""
