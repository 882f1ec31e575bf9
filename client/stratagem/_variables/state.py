"""The values of variables as plain tensors, for checkpoints.

A value is what a read in cross-replica context gives, so that it does not depend on
how many copies there are: any variable takes the value of any other one of its name.
Spec: VCK-1 to VCK-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from stratagem._variables.creators import NextCreator, creator_scope
from stratagem._variables.variable import Variable
from stratagem_proto.errors import NotFoundError


def variables_state(variables: Iterable[Variable]) -> dict[str, torch.Tensor]:
    """Return a snapshot of the value of each variable, by name.

    Raises:
        InvalidArgumentError: A variable is synchronized ON_READ without aggregation.
        ContextError: A replica is running, or another strategy is in charge.
    """
    return {variable.name: variable.read_value().detach() for variable in variables}


def load_variables_state(
    variables: Iterable[Variable], state: Mapping[str, torch.Tensor]
) -> None:
    """Assign to each variable its value from a snapshot.

    Raises:
        NotFoundError: The snapshot lacks a variable; none has been changed.
        InvalidArgumentError: A shape or a dtype differs.
    """
    variables = list(variables)
    missing = [v.name for v in variables if v.name not in state]
    if missing:
        raise NotFoundError(
            f"the snapshot has no variable {missing[0]!r}; it has "
            f"{', '.join(sorted(state)) or 'none'}"
        )
    for variable in variables:
        variable.assign(state[variable.name])


def restoring(state: Mapping[str, torch.Tensor]) -> AbstractContextManager[None]:
    """Scope whose new variables start with their values from a snapshot.

    To be opened inside of the strategy's scope. Variables whose name the snapshot
    lacks start as they were asked to. Spec: VCK-8.
    """

    def restored(next_creator: NextCreator, **kwargs: Any) -> Variable:
        name = kwargs.get("name") or "Variable"
        if name in state:
            kwargs["initial_value"] = state[name]
        return next_creator(**kwargs)

    return creator_scope(restored)
