"""What replicas bring to a step, and what the step makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from stratagem._core.values.without_rows import has_no_rows
from stratagem._gradients.step import GroupStep

ParamGroups = Sequence[Mapping[str, Any]]
"""Param groups of a `DistributedOptimizer`, each with a `ReplicaParams` of "params"."""


@dataclass(frozen=True, eq=False)
class Contribution:
    """The gradients of one replica.

    Attributes:
        groups: All param groups, each with all its variables; what has no gradient here has an
            empty tuple of them.
    """

    groups: Sequence[GroupStep]

    @classmethod
    def of_this_replica(cls, groups: ParamGroups) -> Contribution:
        """Return what is in the parameters; nothing of a replica without rows."""
        is_absent = has_no_rows()
        return cls([_group_of_this_replica(group, is_absent) for group in groups])

    def __bool__(self) -> bool:
        return any([any(group.gradients) for group in self.groups])


def _group_of_this_replica(group: Mapping[str, Any], is_absent: bool) -> GroupStep:
    params = group["params"]
    gradients: list[tuple[torch.Tensor, ...]] = [
        () if is_absent or (own := parameter.grad) is None else (own,) for parameter in params
    ]
    return GroupStep(hyperparameters_of(group), params.variables(), gradients)


def group_steps(contributions: Sequence[Contribution]) -> tuple[GroupStep, ...]:
    """Return what is done to the variables of each group, given those of all replicas.

    Of several replicas, those without any gradient are left out.
    """
    present = list(filter(None, contributions)) or contributions
    parts = zip(*[one.groups for one in present], strict=True)
    return tuple([_group_step(each) for each in parts])


def _group_step(parts: Sequence[GroupStep]) -> GroupStep:
    hyperparameters, variables, gradients = parts[-1]
    if len(parts) > 1:
        columns = zip(*[part.gradients for part in parts], strict=True)
        gradients = [tuple(chain.from_iterable(column)) for column in columns]
    if all(gradients):
        # As nearly always.
        return GroupStep(hyperparameters, variables, gradients)
    pairs = [pair for pair in zip(variables, gradients, strict=True) if pair[1]]
    return GroupStep(hyperparameters, [one for one, _ in pairs], [each for _, each in pairs])


def hyperparameters_of(group: Mapping[str, Any]) -> dict[str, object]:
    """Return what a param group has besides its parameters."""
    return {key: value for key, value in group.items() if key != "params"}
