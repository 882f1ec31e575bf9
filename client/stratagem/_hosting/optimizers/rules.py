"""The rules by which the variables of an optimizer are stepped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from stratagem._core.variables import Variable
from stratagem._gradients.step import GroupStep
from stratagem_proto.programs.optimizers import OptimizerRule, require_honoured, values_of

if TYPE_CHECKING:
    from stratagem._hosting.hosting import Hosting

Groups = Sequence[Mapping[str, Any]]
"""Param groups, with a `ReplicaParams` of "params" each."""

State = Mapping[str, Any]
"""The state for one parameter, by torch's keys."""


class Rules(Protocol):
    """How the variables of one optimizer are stepped.

    Attributes:
        are_traced: Whether that is found out by tracing.
    """

    are_traced: bool

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Check the hyperparameters of a param group.

        Raises:
            InvalidArgumentError: The group cannot be stepped.
        """

    def check_variables(self, group: Mapping[str, Any], hosting: Hosting) -> None:
        """Check whether the variables of a param group can be stepped where they are.

        Raises:
            InvalidArgumentError: One cannot.
            UpdateFunctionError: The optimizer does what no server can do.
        """

    def check_together(self, groups: Groups) -> None:
        """Check all param groups together, each of which was checked before.

        Raises:
            UpdateFunctionError: What is done to a variable depends on others.
        """

    def divided(self, steps: tuple[GroupStep, ...], groups: Groups) -> tuple[GroupStep, ...]:
        """Return the steps of param groups, with a group for each rule."""

    def as_tensors(self, state: State) -> Mapping[str, torch.Tensor]:
        """Return the state of a parameter, of a state dict, as it is kept."""

    def as_local(self, groups: Groups, index: int, variable: Variable, state: State) -> State:
        """Return the state of a variable of a group as the optimizer has it locally."""


class ListedRule:
    """The rule of a class that servers know by name."""

    are_traced = False

    def __init__(self, rule: OptimizerRule) -> None:
        self._rule = rule

    def check_group(self, group: Mapping[str, Any]) -> None:
        require_honoured(self._rule, values_of(self._rule, group))

    def check_variables(self, group: Mapping[str, Any], hosting: Hosting) -> None:
        pass

    def check_together(self, groups: Groups) -> None:
        pass

    def divided(self, steps: tuple[GroupStep, ...], groups: Groups) -> tuple[GroupStep, ...]:
        return steps

    def as_tensors(self, state: State) -> Mapping[str, torch.Tensor]:
        return state

    def as_local(self, groups: Groups, index: int, variable: Variable, state: State) -> State:
        return state
