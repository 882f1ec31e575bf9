"""Handing gradients on while their backward pass goes on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakMethod

import torch

from stratagem._core.distributed_values import has_no_rows
from stratagem._gradients.step import GradientOverlap
from stratagem._hosting.optimizers.trained import TrainedTensors
from stratagem_proto.errors import FailedPreconditionError


class _Handed(NamedTuple):
    """A gradient that was handed on.

    Attributes:
        variable: Name of the variable.
        parameter: Whose gradient it is.
        gradient: The gradient.
        version: How often it had been written.
    """

    variable: str
    parameter: torch.Tensor
    gradient: torch.Tensor
    version: int

    def is_unchanged(self) -> bool:
        same = self.parameter.grad is self.gradient
        return same and self.gradient._version == self.version


class _Probe(NamedTuple):
    """An element by which scaling shows that leaves no other trace.

    `GradScaler.unscale_` multiplies all gradients of an optimizer by one number, and does not count
    as a write to them. If it is not 1, each element changes that is finite and not 0, so that one
    of them is enough to look at.

    Attributes:
        gradient: The gradient.
        place: Where in it the element is, in C order.
        value: The element, as it was sent.
    """

    gradient: torch.Tensor
    place: int
    value: torch.Tensor

    @classmethod
    def of(cls, gradient: torch.Tensor) -> _Probe | None:
        """Return one of a gradient; None if scaling changes nothing in it."""
        elements = gradient.detach().reshape(-1)
        shows = elements.isfinite() & (elements != 0)
        if not shows.any():
            return None
        place = int(shows.to(torch.uint8).argmax())
        return cls(gradient, place, elements[place].clone())

    def is_unchanged(self) -> bool:
        return torch.equal(self.gradient.detach().reshape(-1)[self.place], self.value)


class Overlap:
    """Watches the parameters of one optimizer.

    Args:
        early: Where gradients go.
        trained: Finds the variables behind parameters.
    """

    def __init__(self, early: GradientOverlap, trained: TrainedTensors) -> None:
        self._early = early
        self._trained = trained
        # By id of the parameter.
        self._handed: dict[int, _Handed] = {}
        self._probe: _Probe | None = None

    def watch(self, group: int, parameters: Sequence[torch.Tensor]) -> None:
        """Hand on the gradients of a param group's dense parameters from now on."""
        final = WeakMethod(self._final)
        for parameter in parameters:
            if parameter.is_leaf and parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(_call, final, group))

    def _final(self, group: int, parameter: torch.Tensor) -> None:
        gradient, trained = parameter.grad, self._trained.find(parameter)
        if gradient is None or gradient.is_sparse or trained is None or has_no_rows():
            return
        earlier = self._handed.get(id(parameter))
        if earlier is not None and earlier.gradient is gradient:
            raise FailedPreconditionError(
                f"the gradient of {trained.variable.name!r} was sent already when a "
                "second backward pass added to it; with overlap=True call "
                "optimizer.zero_grad() before each backward(), or leave overlap out to "
                "accumulate gradients",
                variable=trained.variable.name,
            )
        if earlier is not None:
            self.discard()
        self._handed[id(parameter)] = _Handed(
            trained.variable.name, parameter, gradient, gradient._version
        )
        self._probe = self._probe or _Probe.of(gradient)
        self._early.add(trained.variable, gradient.detach(), group)

    def __enter__(self) -> None:
        """Begin the step that the gradients are for.

        Raises:
            FailedPreconditionError: One was changed since it was handed on; nothing of the pass
                will be applied.
        """
        if has_no_rows():
            self.discard()
        for handed in list(self._handed.values()):
            if not handed.is_unchanged():
                raise self.refusal(f"the gradient of {handed.variable!r} was changed")
        if self._probe is not None and not self._probe.is_unchanged():
            raise self.refusal("the scale of all gradients was changed")

    def refusal(self, what: str) -> FailedPreconditionError:
        """Return the error of gradients that were changed; nothing of the pass will be applied."""
        self.discard()
        return FailedPreconditionError(
            f"{what} after it was sent; overlap=True excludes clipping, GradScaler and "
            "whatever else changes or clears gradients between backward() and step(). "
            "Leave overlap out"
        )

    def __exit__(self, *error: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Forget what was handed on."""
        self._handed.clear()
        self._probe = None
        self._early.discard()


def _call(final: WeakMethod[Any], group: int, parameter: torch.Tensor) -> None:
    # The parameters may outlive the optimizer.
    method = final()
    if method is not None:
        method(group, parameter)
