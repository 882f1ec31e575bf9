"""What replicas bring to a step, and what the step makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stratagem._core.values.without_rows import has_no_rows
from stratagem._gradients.step import GroupStep, VariableGradients

ParamGroups = Sequence[Mapping[str, Any]]
"""Param groups of a `DistributedOptimizer`, each with a `ReplicaParams` of "params"."""


@dataclass(frozen=True, eq=False)
class Contribution:
    """The gradients of one replica, by group and parameter."""

    gradients: list[list[torch.Tensor | None]]

    @classmethod
    def of_this_replica(cls, groups: ParamGroups) -> Contribution:
        """Return what is in the parameters; nothing of a replica without rows."""
        if has_no_rows():
            return cls([[None] * len(group["params"]) for group in groups])
        return cls([[p.grad for p in group["params"]] for group in groups])

    def __bool__(self) -> bool:
        return any([g is not None for group in self.gradients for g in group])


def group_steps(
    groups: ParamGroups, contributions: Sequence[Contribution]
) -> tuple[GroupStep, ...]:
    """Return what is done to the variables of each group."""
    return tuple(
        [
            _group_step(group, [each.gradients[number] for each in contributions])
            for number, group in enumerate(groups)
        ]
    )


def _group_step(
    group: Mapping[str, Any], gradients: Sequence[Sequence[torch.Tensor | None]]
) -> GroupStep:
    hyperparameters, variables = hyperparameters_of(group), group["params"].variables()
    if len(gradients) == 1 and not any([each is None for each in gradients[0]]):
        # As nearly always; what has no variable yet has no gradient.
        return GroupStep(
            hyperparameters, variables, tuple(zip(*gradients, strict=True))
        )
    # Without contributions there are no columns.
    columns = zip(variables, zip(*gradients, strict=True), strict=False)
    updates = [
        VariableGradients(one, tuple([each for each in column if each is not None]))
        for one, column in columns
        if one is not None
    ]
    return GroupStep.of(hyperparameters, [one for one in updates if one.gradients])


def hyperparameters_of(group: Mapping[str, Any]) -> dict[str, object]:
    """Return what a param group has besides its parameters."""
    return {key: value for key, value in group.items() if key != "params"}
