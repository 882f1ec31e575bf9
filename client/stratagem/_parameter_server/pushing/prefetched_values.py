"""Values that come with the answer to a push, for the step after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import is_
from typing import NamedTuple, TypeAlias

import torch

from stratagem._parameter_server.variables.variable import RemoteVariable, by_server
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.reading import Following, Reading, following

# Values wait in memory of their own for the step that takes them. What takes longer
# to copy from there than a request takes is not worth it.
_MOST_BYTES = 8 << 20

PulledAs: TypeAlias = Callable[[RemoteVariable, bool], torch.dtype | None]
"""What a variable is rounded to on its way here, to a training step or otherwise."""

Came: TypeAlias = tuple[int, Reading]
"""The version of a value that waits, and what it was read by."""


class ReceiveBuffer:
    """Memory where what one server sends with an answer waits for the step after it.

    Args:
        variables: What it is asked for.
        pulled_as: What that is rounded to.
    """

    def __init__(
        self, variables: Sequence[RemoteVariable], pulled_as: PulledAs
    ) -> None:
        self._variables = variables
        self._names = frozenset([variable.name for variable in variables])
        self._all = following(
            [
                Reading(
                    one.name,
                    torch.empty(one.shape, dtype=one.dtype),
                    narrowed_to=pulled_as(one, True),
                )
                for one in variables
            ]
        )

    def asking(
        self, stepped: AbstractSet[str], came: Mapping[RemoteVariable, Came]
    ) -> Following:
        """Return how to ask for what is newer then.

        Args:
            stepped: Names of the variables that have a gradient in the push.
            came: What waits already.
        """
        # What is stepped is newer then, and is asked for by the same words each time.
        if stepped >= self._names:
            return self._all
        pairs = zip(self._variables, self._all.readings, strict=True)
        return following(
            [
                one if one.variable in stepped else _if_newer(variable, one, came)
                for variable, one in pairs
            ]
        )


def _if_newer(
    variable: RemoteVariable, reading: Reading, came: Mapping[RemoteVariable, Came]
) -> Reading:
    if variable in came:
        return reading._replace(newer_than=came[variable][0])
    return variable.reading(reading.narrowed_to, reading.into)


class Asked(NamedTuple):
    """What a push asks for; all by server.

    Attributes:
        variables: The variables.
        landings: Where they wait.
        following: How to ask for them.
    """

    variables: Mapping[int, Sequence[RemoteVariable]]
    landings: Mapping[int, ReceiveBuffer]
    following: Mapping[int, Following]


class PrefetchedValues:
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
        self._came: dict[RemoteVariable, Came] = {}
        # Allocating tensors costs more than keeping them; by server.
        self._free: dict[int, list[ReceiveBuffer]] = {}
        self._taken: list[tuple[int, ReceiveBuffer]] = []
        self._changes = servers.changes

    def expect(self, variables: Sequence[RemoteVariable]) -> None:
        """Take note of what a step starts with; the next one will want the same."""
        if not _are_same(variables, self._expected):
            self._expected, self._wanted = variables, by_server(variables)
            self._nbytes = sum(one.nbytes for one in variables)
            self._free = {server: [] for server in self._wanted}
            self._taken.clear()

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
        while self._taken:
            server, landing = self._taken.pop()
            self._free[server].append(landing)

    def ask(self, stepped: Mapping[int, AbstractSet[str]]) -> Asked:
        """Return what to read with a push.

        Args:
            stepped: Names of the variables that it has gradients of, by server.
        """
        if self._changes != self._servers.changes:
            self.drop()
            self._changes = self._servers.changes
        landings = {
            server: free.pop() if free else self._landing(server)
            for server, free in self._free.items()
        }
        asking = {
            server: landing.asking(stepped[server], self._came)
            for server, landing in landings.items()
        }
        return Asked(self._wanted, landings, asking)

    def _landing(self, server: int) -> ReceiveBuffer:
        return ReceiveBuffer(self._wanted[server], self._pulled_as)

    def came(self, asked: Asked, versions: Mapping[int, Sequence[int]]) -> None:
        """Take in what came for what was asked."""
        for server, variables in asked.variables.items():
            self._covered.update(variables)
            readings = asked.following[server].readings
            each = zip(variables, readings, versions[server], strict=True)
            self._came |= {
                variable: (version, reading)
                for variable, reading, version in each
                if version != reading.newer_than
            }
        if asked.variables is self._wanted:
            self._taken += asked.landings.items()

    def use_prefetched(
        self, variables: Sequence[RemoteVariable], beside: bool = False
    ) -> bool:
        """Bring copies up to date, if what has come is all that they need.

        Args:
            variables: Whose copies.
            beside: Whether a push is in flight that has asked for more.
        """
        if not self._are_complete(variables, beside):
            self.drop()
            return False
        self.take(variables)
        self.drop()
        return True

    def take(self, variables: Iterable[RemoteVariable]) -> None:
        """Bring copies up to date as far as something has come for them."""
        came = self._came
        each = [(one, *came.pop(one)) for one in variables if one in came]
        newer = [given for given in each if given[0].is_older_than(given[1])]
        if newer:
            leaves = [variable.leaf for variable, _, _ in newer]
            with torch.no_grad():
                torch._foreach_copy_(leaves, [reading.into for _, _, reading in newer])
        for variable, version, reading in newer:
            variable.replaced(version, reading.narrowed_to is not None)

    def cover(self, variables: Iterable[RemoteVariable]) -> None:
        """Take note that copies are all that the next step needs of them."""
        self.drop()
        self._covered.update(variables)
        self._changes = self._servers.changes

    def _are_complete(self, variables: Sequence[RemoteVariable], beside: bool) -> bool:
        if self._changes != self._servers.changes or self._servers.snapshot:
            return False
        if not beside and not self._covered.issuperset(variables):
            return False
        came = self._came
        return all([one in came or one.is_known for one in variables])


def _are_same(some: Sequence[RemoteVariable], others: Sequence[RemoteVariable]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))
