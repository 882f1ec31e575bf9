"""Values that come with the answer to a push, for the step after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import TypeAlias

import torch

from stratagem._parameter_server.pushing.loads import Load
from stratagem._parameter_server.variables.variable import RemoteVariable, by_server
from stratagem._servers.group import ServerGroup
from stratagem._servers.reading import Reading

# Values wait in memory of their own for the step that takes them. What takes longer
# to copy from there than a request takes is not worth it.
_MOST_BYTES = 8 << 20

PulledAs: TypeAlias = Callable[[RemoteVariable, bool], torch.dtype | None]
"""What a variable is rounded to on its way here, to a training step or otherwise."""


@dataclass(frozen=True)
class Asked:
    """What a push asks for.

    Attributes:
        variables: By server.
        readings: Of these variables.
    """

    variables: Mapping[int, Sequence[RemoteVariable]]
    readings: Mapping[int, Sequence[Reading]]


class NextValues:
    """What the next step starts with, as far as it has come.

    Args:
        servers: Where the values are.
        pulled_as: What they are rounded to.
    """

    def __init__(self, servers: ServerGroup, pulled_as: PulledAs) -> None:
        self._servers = servers
        self._pulled_as = pulled_as
        self._expected: Sequence[RemoteVariable] = ()
        self._nbytes = 0
        self._wanted: Mapping[int, Sequence[RemoteVariable]] = {}
        self._covered: set[RemoteVariable] = set()
        self._came: dict[RemoteVariable, tuple[int, torch.Tensor]] = {}
        # Allocating tensors costs more than keeping them.
        self._spare: dict[RemoteVariable, torch.Tensor] = {}
        self._changes = servers.changes

    def expect(self, variables: Sequence[RemoteVariable]) -> None:
        """Take note of what a step starts with; the next one will want the same."""
        if not _are_same(variables, self._expected):
            self._expected, self._wanted = variables, by_server(variables)
            self._nbytes = sum(one.nbytes for one in variables)

    @property
    def wanted(self) -> Mapping[int, Sequence[RemoteVariable]]:
        """What the next step will want, by server."""
        return self._wanted

    @property
    def are_few(self) -> bool:
        """Whether that is so little that it may wait in memory of its own."""
        return self._nbytes <= _MOST_BYTES

    def drop(self) -> None:
        """Forget what has come, since there is something newer."""
        self._covered.clear()
        self._came.clear()

    def ask(self, loads: Mapping[int, Load]) -> Asked:
        """Return what to read with a push.

        Args:
            loads: What is pushed, by server.
        """
        if self._changes != self._servers.changes:
            self.drop()
            self._changes = self._servers.changes
        readings = {
            server: self._readings(group, loads[server])
            for server, group in self._wanted.items()
        }
        return Asked(self._wanted, readings)

    def _readings(
        self, variables: Sequence[RemoteVariable], load: Load
    ) -> list[Reading]:
        # What is stepped is newer then, and is asked for by the same words each time.
        stepped = {gradient.variable for gradient in load.gradients}
        return [self._reading(one, one.name in stepped) for one in variables]

    def _reading(self, variable: RemoteVariable, is_stepped: bool) -> Reading:
        into = self._spare.pop(variable, None)
        if into is None:
            into = torch.empty(variable.shape, dtype=variable.dtype)
        narrowed_to = self._pulled_as(variable, True)
        if is_stepped:
            return Reading(variable.name, into, narrowed_to=narrowed_to)
        reading = variable.reading(narrowed_to, into)
        if variable in self._came:
            reading = reading._replace(newer_than=self._came[variable][0])
        return reading

    def came(self, asked: Asked, versions: Mapping[int, Sequence[int]]) -> None:
        """Take in what came for what was asked."""
        for server, variables in asked.variables.items():
            self._covered.update(variables)
            readings = asked.readings[server]
            for each in zip(variables, readings, versions[server], strict=True):
                self._take(*each)

    def _take(self, variable: RemoteVariable, reading: Reading, version: int) -> None:
        if reading.newer_than is not None and version <= reading.newer_than:
            self._spare[variable] = reading.into
            return
        older = self._came.get(variable)
        self._came[variable] = version, reading.into
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
        came = self._came
        newer = [
            (one, *came[one])
            for one in variables
            if one in came and one.is_older_than(came[one][0])
        ]
        if newer:
            with torch.no_grad():
                torch._foreach_copy_(
                    [one.leaf for one, _, _ in newer], [v for _, _, v in newer]
                )
        for variable, version, _ in newer:
            is_rounded = self._pulled_as(variable, True) is not None
            variable.settle(version, is_rounded)
        self._spare |= {one: value for one, (_, value) in came.items()}
        self.drop()
        return True

    def _are_complete(self, variables: Sequence[RemoteVariable], beside: bool) -> bool:
        if self._changes != self._servers.changes or self._servers.snapshot:
            return False
        if not beside and not self._covered.issuperset(variables):
            return False
        came = self._came
        return all([one in came or one.is_known for one in variables])


def _are_same(some: Sequence[RemoteVariable], others: Sequence[RemoteVariable]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))
