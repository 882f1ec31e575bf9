"""Where the gradients of the same variables go, step after step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from operator import is_

import torch

from stratagem._core.variables import Variable
from stratagem._gradients import OptimizerStep
from stratagem._parameter_server.pushing.push import Update
from stratagem._parameter_server.variables.split_variable import parts_of
from stratagem._parameter_server.variables.variable import (
    Copies,
    RemoteVariable,
    by_server,
    remote_of,
)
from stratagem._ps_client.requests.updates import GradientHeaderCache, dense_step


class GradientRouter:
    """Finds out once on which servers an optimizer's variables are."""

    def __init__(self) -> None:
        self._last: dict[str, Route] = {}

    def keep(self, optimizers: Collection[str]) -> None:
        """Forget the routes of all optimizers but these."""
        self._last = {name: one for name, one in self._last.items() if name in optimizers}

    def of(self, step: OptimizerStep) -> Route:
        """Return the route of a step; that of the last one, if it has the same."""
        variables = [group.variables for group in step.groups]
        route = self._last.get(step.optimizer)
        if route is None or not route.fits(variables):
            route = self._last[step.optimizer] = Route(variables)
        return route


class Route:
    """Where the gradients of certain variables go, and what is then to be fresh.

    Attributes:
        copies: Those variables of which there are copies here, by server.
    """

    def __init__(self, variables: Sequence[Sequence[Variable]]) -> None:
        self._variables = variables
        self._headers = _headers(variables)
        self.copies: Copies = _copies(variables)

    def fits(self, variables: Sequence[Sequence[Variable]]) -> bool:
        """Return whether it is for these."""
        return len(variables) == len(self._variables) and all(
            map(_are_same, variables, self._variables)
        )

    def updates(self, program: bytes, step: OptimizerStep) -> dict[int, Update] | None:
        """Return what each server gets of a step with one gradient for each variable.

        None where that is not so simple. `program` is as of `updates.step`.
        """
        if self._headers is None:
            return None
        gradients = [one for group in step.groups for (one,) in group.gradients]
        if any([each.layout is not torch.strided for each in gradients]):
            return None
        updates = {}
        for server, (header, places) in self._headers.items():
            tensors = [gradients[place] for place in places]
            request = dense_step(program, header, tensors)
            updates[server] = Update(request, header.variables)
        return updates


def _are_same(some: Sequence[Variable], others: Sequence[Variable]) -> bool:
    if some is others:
        return True
    return len(some) == len(others) and all(map(is_, some, others))


def _copies(variables: Sequence[Sequence[Variable]]) -> Mapping[int, Sequence[RemoteVariable]]:
    parts = [part for group in variables for one in group for part in parts_of(one)]
    return by_server([part for part in parts if part.has_copy])


def _headers(
    variables: Sequence[Sequence[Variable]],
) -> Mapping[int, tuple[GradientHeaderCache, Sequence[int]]] | None:
    """Return what each server is told, and the places of its gradients in a step.

    None if a variable is not on exactly one server.
    """
    named: dict[int, list[tuple[str, int]]] = defaultdict(list)
    places: dict[int, list[int]] = defaultdict(list)
    each = [(one, group) for group, ones in enumerate(variables) for one in ones]
    for place, (variable, group) in enumerate(each):
        remote = remote_of(variable)
        if remote is None:
            return None
        named[remote.place.server].append((remote.name, group))
        places[remote.place.server].append(place)
    return {
        server: (GradientHeaderCache(gradients), places[server])
        for server, gradients in named.items()
    }
