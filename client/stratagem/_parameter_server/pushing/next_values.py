"""Values that come with the answer to a push, for the step after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from stratagem._parameter_server.variables.variable import RemoteVariable, by_server
from stratagem._servers.group import ServerGroup
from stratagem._servers.reads import Reading

# Values wait in memory of their own for the step that takes them. What takes longer
# to copy from there than a request takes is not worth it.
_MOST_BYTES = 8 << 20

PulledAs: TypeAlias = Callable[[RemoteVariable, bool], torch.dtype | None]
"""What a variable is rounded to on its way here, to a training step or otherwise."""


@dataclass(frozen=True)
class Asked:
    """What a push asks for.

    Attributes:
        readings: By server and variable.
    """

    readings: Mapping[int, Mapping[RemoteVariable, Reading]]


class NextValues:
    """What the next step starts with, as far as it has come.

    Args:
        servers: Where the values are.
        pulled_as: What they are rounded to.
    """

    def __init__(self, servers: ServerGroup, pulled_as: PulledAs) -> None:
        self._servers = servers
        self._pulled_as = pulled_as
        self._wanted: Mapping[int, Sequence[RemoteVariable]] = {}
        self._covered: set[RemoteVariable] = set()
        self._came: dict[RemoteVariable, tuple[int, torch.Tensor]] = {}
        # Allocating tensors costs more than keeping them.
        self._spare: dict[RemoteVariable, torch.Tensor] = {}
        self._changes = servers.changes

    def expect(self, variables: Sequence[RemoteVariable]) -> None:
        """Take note of what a step starts with; the next one will want the same."""
        self._wanted = by_server(variables)

    @property
    def wanted(self) -> Mapping[int, Sequence[RemoteVariable]]:
        """What the next step will want, by server."""
        return self._wanted

    @property
    def are_few(self) -> bool:
        """Whether that is so little that it may wait in memory of its own."""
        wanted = (one for group in self._wanted.values() for one in group)
        return sum(one.nbytes for one in wanted) <= _MOST_BYTES

    def drop(self) -> None:
        """Forget what has come, since there is something newer."""
        self._covered.clear()
        self._came.clear()

    def ask(self) -> Asked:
        """Return what to read with a push."""
        if self._changes != self._servers.changes:
            self.drop()
            self._changes = self._servers.changes
        readings = {
            server: {one: self._reading(one) for one in group}
            for server, group in self._wanted.items()
        }
        return Asked(readings)

    def _reading(self, variable: RemoteVariable) -> Reading:
        spare = self._spare.pop(variable, None)
        if spare is None:
            spare = torch.empty(variable.shape, dtype=variable.dtype)
        reading = variable.reading(self._pulled_as(variable, True), spare)
        if variable in self._came:
            reading = reading._replace(newer_than=self._came[variable][0])
        return reading

    def came(self, asked: Asked, versions: Mapping[int, Sequence[int]]) -> None:
        """Take in what came for what was asked."""
        for server, readings in asked.readings.items():
            self._covered.update(readings)
            for one, version in zip(readings.items(), versions[server], strict=True):
                self._take(*one, version)

    def _take(self, variable: RemoteVariable, reading: Reading, version: int) -> None:
        self._spare[variable] = reading.into
        if reading.newer_than is None or version > reading.newer_than:
            older = self._came.get(variable)
            self._came[variable] = version, self._spare.pop(variable)
            if older is not None:
                self._spare[variable] = older[1]

    def land(self, variables: Sequence[RemoteVariable], beside: bool = False) -> bool:
        """Bring copies up to date, if what has come is all that they need.

        Args:
            variables: Whose copies.
            beside: Whether a push is in flight that has asked for more.
        """
        if not self._are_complete(variables, beside):
            self.drop()
            return False
        came = [(one, *self._came[one]) for one in variables if one in self._came]
        newer = [each for each in came if each[0].is_older_than(each[1])]
        if newer:
            with torch.no_grad():
                torch._foreach_copy_(
                    [one.leaf for one, _, _ in newer], [v for _, _, v in newer]
                )
        for variable, version, _ in newer:
            is_rounded = self._pulled_as(variable, True) is not None
            variable.settle(version, is_rounded)
        self._spare |= {variable: value for variable, _, value in came}
        self.drop()
        return True

    def _are_complete(self, variables: Sequence[RemoteVariable], beside: bool) -> bool:
        if self._changes != self._servers.changes or self._servers.snapshot:
            return False
        return (beside or self._covered.issuperset(variables)) and all(
            one.is_known or one in self._came for one in variables
        )
