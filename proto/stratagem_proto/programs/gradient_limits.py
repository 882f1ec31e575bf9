"""The limits of a step's gradients; loads nothing of servers, as training in one process must."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from stratagem_proto.errors import InvalidArgumentError, NonFiniteGradientError

ON_NONFINITE = (None, "reject", "zero", "raise")


@dataclass(frozen=True)
class GradientLimits:
    """What is done to all the gradients of a step, in this order.

    Attributes:
        on_nonfinite: What NaN or an infinity in any of them leads to: "zero" puts 0 in its place,
            "reject" drops the step, "raise" fails it; None is blind.
        clip_value: Elements are clamped to plus and minus this.
        clip_norm: If the Euclidean norm of all elements together is larger, they are scaled down to
            it, as by `torch.nn.utils.clip_grad_norm_`.

    Raises:
        InvalidArgumentError: A bound is not above 0, or there is no such action.
    """

    on_nonfinite: str | None = None
    clip_value: float | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        for name in ("clip_value", "clip_norm"):
            bound = getattr(self, name)
            if bound is not None and not (bound > 0 and math.isfinite(bound)):
                raise InvalidArgumentError(
                    f"{name} is a finite number above 0, not {bound!r}; leave it out for no bound"
                )
        if self.on_nonfinite not in ON_NONFINITE:
            words = ", ".join(repr(word) for word in ON_NONFINITE)
            raise InvalidArgumentError(f"on_nonfinite is one of {words}, not {self.on_nonfinite!r}")

    def __bool__(self) -> bool:
        bounds = self.on_nonfinite, self.clip_value, self.clip_norm
        return any(bound is not None for bound in bounds)

    def apply(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
        """Return the gradients within the limits; None if the step is dropped.

        Args:
            gradients: By variable; dense ones, or those of rows each of which is there once. They
                stay as they are.

        Raises:
            NonFiniteGradientError: Naming the first variable, with "raise".
        """
        if name := self.offender(gradients):
            self.drop(name)
            return None
        bounded = self.bounded(gradients)
        if self.clip_norm is None or not bounded:
            return bounded
        return self.scaled(bounded, torch.nn.utils.get_total_norm(bounded.values()))

    def offender(self, gradients: Mapping[str, torch.Tensor]) -> str:
        """Return the first variable whose gradient makes the step fail or be dropped, or ""."""
        if self.on_nonfinite in ("reject", "raise"):
            for name, gradient in gradients.items():
                if not bool(gradient.isfinite().all()):
                    return name
        return ""

    def drop(self, variable: str, whose: str = "") -> None:
        """Drop a step because of a gradient that is not finite.

        Args:
            variable: Whose gradient it is.
            whose: The worker that it came from, if that is known.

        Raises:
            NonFiniteGradientError: With "raise".
        """
        if self.on_nonfinite == "raise":
            source = f" from {whose}" if whose else ""
            raise NonFiniteGradientError(
                f"the gradient of {variable!r}{source} has NaN or infinities; lower "
                'the learning rate, or drop such steps by on_nonfinite="reject"',
                variable=variable,
            )

    def zeroed(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the gradients; with "zero", elements that are not finite are replaced by 0."""
        if self.on_nonfinite != "zero":
            return dict(gradients)
        return {
            name: torch.where(gradient.isfinite(), gradient, 0)
            for name, gradient in gradients.items()
        }

    def bounded(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the gradients within all limits except that of the norm."""
        zeroed = self.zeroed(gradients)
        if (bound := self.clip_value) is None:
            return zeroed
        return {name: g.clamp(-bound, bound) for name, g in zeroed.items()}

    def scaled(
        self, gradients: Mapping[str, torch.Tensor], norm: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the gradients, scaled down if their norm is too large.

        Args:
            gradients: All of a step, or some of them.
            norm: That of all, a scalar.
        """
        if self.clip_norm is None:
            return dict(gradients)
        # The same formula as in `torch.nn.utils.clip_grad_norm_`.
        scale = (self.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        return {name: g * scale.to(g) for name, g in gradients.items()}


def sum_of_squares(gradients: Iterable[torch.Tensor]) -> float:
    """Return the square of the norm of all gradients together, added in their order."""
    return sum(_norm(gradient) ** 2 for gradient in gradients)


def _norm(gradient: torch.Tensor) -> float:
    real = gradient.abs() if gradient.is_complex() else gradient
    # Squares of numbers of smaller dtypes do not overflow in 64 bits.
    return float(torch.linalg.vector_norm(real, dtype=torch.float64))
