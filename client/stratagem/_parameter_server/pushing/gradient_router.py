"""Where the gradients of the same variables go, step after step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_

import torch

from stratagem._core.variables.variable import Variable
from stratagem._gradients.step import OptimizerStep
from stratagem._parameter_server.variables.split_variable import parts_of
from stratagem._parameter_server.variables.variable import (
    Copies,
    RemoteVariable,
    by_server,
    remote_of,
)
from stratagem._ps_client.requests.request import Request, Result
from stratagem._ps_client.requests.updates import GradientHeaderCache, dense_step


@dataclass(frozen=True)
class DenseServerBatch:
    """What one server gets in a step: gradients that are as they are.

    Attributes:
        naming: What they are of.
        tensors: The gradients.
    """

    naming: GradientHeaderCache
    tensors: Sequence[torch.Tensor]

    @property
    def variables(self) -> frozenset[str]:
        """Names of the variables that they are of."""
        return self.naming.variables

    def update(self, program: bytes) -> Request[list[int]]:
        """Return the request that pushes them; `program` as of `updates.step`."""
        return dense_step(program, self.naming, self.tensors)

    def sent_by(self, request: Request[Result]) -> Request[Result]:
        """Return the request; nothing depends on its end."""
        return request


class GradientRouter:
    """Finds out once on which servers an optimizer's variables are.

    For 5 of them loads are made in 1.8 us instead of 4.5, and requests of these in 2.3
    instead of 4.0: in a row, which is three times as fast as between other steps' code.
    """

    def __init__(self) -> None:
        self._last: dict[str, Route] = {}

    def of(self, step: OptimizerStep) -> Route:
        """Return the route of a step; that of the last one, if it has the same."""
        variables = [group.variables for group in step.groups]
        route = self._last.get(step.optimizer)
        if route is None or not route.fits(variables):
            route = self._last[step.optimizer] = Route(variables)
        return route


class Route:
    """Where the gradients of certain variables go, and what is then to be fresh.

    Args:
        variables: Those of each param group.

    Attributes:
        copies: Those variables of which there are copies here, by server.
    """

    def __init__(self, variables: Sequence[Sequence[Variable]]) -> None:
        self._variables = variables
        self._namings: Mapping[int, GradientHeaderCache] | None = _namings(variables)
        self.copies: Copies = _copies(variables)

    def fits(self, variables: Sequence[Sequence[Variable]]) -> bool:
        """Whether it is for these."""
        return len(variables) == len(self._variables) and all(
            map(_are_same, variables, self._variables)
        )

    def batches(
        self, gradients: Mapping[str, torch.Tensor]
    ) -> Mapping[int, DenseServerBatch] | None:
        """Return what each server gets; None where that is not so simple.

        Args:
            gradients: Those of all its variables, by name.
        """
        if self._namings is None:
            return None
        batches = {}
        for server, naming in self._namings.items():
            tensors = [gradients[name] for name in naming.names]
            if any([each.layout is not torch.strided for each in tensors]):
                return None
            batches[server] = DenseServerBatch(naming, tensors)
        return batches


def _are_same(some: Sequence[Variable], others: Sequence[Variable]) -> bool:
    if some is others:
        return True
    return len(some) == len(others) and all(map(is_, some, others))


def _copies(
    variables: Sequence[Sequence[Variable]],
) -> Mapping[int, Sequence[RemoteVariable]]:
    parts = [part for group in variables for one in group for part in parts_of(one)]
    return by_server([part for part in parts if part.has_copy])


def _namings(
    variables: Sequence[Sequence[Variable]],
) -> Mapping[int, GradientHeaderCache] | None:
    """What each server is told; None if a variable is not on exactly one."""
    named: dict[int, list[tuple[str, int]]] = defaultdict(list)
    each = [(one, group) for group, ones in enumerate(variables) for one in ones]
    for variable, group in each:
        remote = remote_of(variable)
        if remote is None:
            return None
        named[remote.place.server].append((remote.name, group))
    return {
        server: GradientHeaderCache(gradients) for server, gradients in named.items()
    }
