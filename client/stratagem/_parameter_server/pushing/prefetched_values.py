"""Values that come with the answer to a push, for the step after it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import is_
from typing import NamedTuple, TypeAlias

import torch

from stratagem._parameter_server.pushing.push import Expected, Pulls, Push
from stratagem._parameter_server.variables.variable import RemoteVariable, by_server
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.reading import Reading, ReadsAfterUpdate, following

Came: TypeAlias = tuple[int, Reading]
"""The version of a value that waits, and what it was read by."""


class ReceiveBuffer:
    """Memory where what one server sends with an answer waits for the step after it."""

    def __init__(self, variables: Sequence[RemoteVariable], pulls: Pulls) -> None:
        self._variables = variables
        self._names = frozenset([variable.name for variable in variables])
        self._all = following(
            [
                Reading(
                    one.name,
                    torch.empty(one.shape, dtype=one.dtype),
                    narrowed_to=pulls.rounded_to(one, training=True),
                )
                for one in variables
            ]
        )

    def asking(
        self, stepped: AbstractSet[str], came: Mapping[RemoteVariable, Came]
    ) -> ReadsAfterUpdate:
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
        buffers: Where they wait.
        following: How to ask for them.
    """

    variables: Mapping[int, Sequence[RemoteVariable]]
    buffers: Mapping[int, ReceiveBuffer]
    following: Mapping[int, ReadsAfterUpdate]


class PrefetchedValues:
    """What the next step starts with, as far as it has come.

    Attributes:
        expected: What the next step is expected to want.
    """

    def __init__(self, servers: ServerGroup, pulls: Pulls) -> None:
        self._servers, self._pulls = servers, pulls
        self.expected = Expected((), {}, 0)
        self._covered: set[RemoteVariable] = set()
        self._came: dict[RemoteVariable, Came] = {}
        # Allocating tensors costs more than keeping them; by server.
        self._free: dict[int, list[ReceiveBuffer]] = {}
        self._filled: list[tuple[int, ReceiveBuffer]] = []
        self._changes = servers.changes

    def expect(self, variables: Sequence[RemoteVariable]) -> None:
        """Take note of what a step starts with; the next one will want the same."""
        if not _are_same(variables, self.expected.variables):
            groups = by_server(variables)
            nbytes = sum(one.nbytes for one in variables)
            self.expected = Expected(variables, groups, nbytes)
            self._free = {server: [] for server in groups}
            self._filled.clear()

    def drop(self, fresh: Collection[RemoteVariable] = ()) -> None:
        """Forget what has come, since there is something newer.

        The next step needs no more of `fresh` than their copies.
        """
        self._came.clear()
        while self._filled:
            server, buffer = self._filled.pop()
            self._free[server].append(buffer)
        self._covered.clear()
        if fresh:
            self._covered.update(fresh)
            self._changes = self._servers.changes

    def ask(self, push: Push) -> Asked:
        """Return what to read with a push."""
        if self._changes != self._servers.changes:
            self.drop()
            self._changes = self._servers.changes
        buffers = {
            server: free.pop() if free else self._new_buffer(server)
            for server, free in self._free.items()
        }
        asking = {
            server: buffer.asking(push.updates[server].variables, self._came)
            for server, buffer in buffers.items()
        }
        return Asked(self.expected.by_server, buffers, asking)

    def _new_buffer(self, server: int) -> ReceiveBuffer:
        return ReceiveBuffer(self.expected.by_server[server], self._pulls)

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
        if asked.variables is self.expected.by_server:
            self._filled += asked.buffers.items()

    def use(self, variables: Sequence[RemoteVariable], beside_push: bool = False) -> bool:
        """Bring copies up to date, if what has come is all that they need.

        With `beside_push`, a push is in flight that has asked for more.
        """
        are_complete = self._are_complete(variables, beside_push)
        if are_complete:
            self.take(variables)
        self.drop()
        return are_complete

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

    def _are_complete(self, variables: Sequence[RemoteVariable], beside_push: bool) -> bool:
        if self._changes != self._servers.changes or self._servers.snapshot:
            return False
        if not beside_push and not self._covered.issuperset(variables):
            return False
        came = self._came
        return all([one in came or one.is_known for one in variables])


def _are_same(some: Sequence[RemoteVariable], others: Sequence[RemoteVariable]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))
