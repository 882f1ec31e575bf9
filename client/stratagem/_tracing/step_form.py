"""What is known of the steps of an optimizer before they are traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch


@dataclass(frozen=True)
class KeptState:
    """A key of the state after a step.

    Attributes:
        dtype: The dtype of the tensor that keeps it.
        is_scalar: Whether it is one value, and not one for each element of the parameter.
        number: An example, if it is a number of Python.
    """

    dtype: torch.dtype
    is_scalar: bool
    number: int | float | None = None

    @property
    def form(self) -> str:
        """Describe it, for comparisons and messages."""
        if self.number is not None:
            return f"a Python {type(self.number).__name__}"
        return f"a {self.dtype} " + ("scalar" if self.is_scalar else "tensor of its shape")


@dataclass(frozen=True)
class StepForm:
    """What is known of a step before it is traced.

    Attributes:
        shape: The shape of the parameter.
        dtype: The dtype of the parameter.
        constants: The hyperparameters that are constants of the program.
        has_scratch: Whether the code gets a copy of the gradient, which it may write.
        state: The state before the step.
    """

    shape: torch.Size
    dtype: torch.dtype
    constants: frozenset[str] = frozenset()
    has_scratch: bool = False
    state: Mapping[str, KeptState] = field(default_factory=dict)

    def with_constants(self, names: frozenset[str]) -> StepForm:
        return replace(self, constants=names)

    def with_scratch(self) -> StepForm:
        return replace(self, has_scratch=True)

    def with_state(self, state: Mapping[str, KeptState]) -> StepForm:
        return replace(self, state=state)


class GroupForm(NamedTuple):
    """A param group of which some parameters are stepped.

    Attributes:
        values: The group, without parameters.
        steps: The step of each of these parameters.
    """

    values: Mapping[str, object]
    steps: Sequence[StepForm]
