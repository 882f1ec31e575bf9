"""A step that servers apply when it comes, and the values that come back with the answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, auto
from operator import is_
from typing import NamedTuple, TypeAlias, TypeVar

import torch

from stratagem._parameter_server.hosting.steps import StepPermit
from stratagem._parameter_server.variables.variable import Copies, RemoteVariable, by_server
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.reads import (
    Answer,
    Reading,
    ReadsAfterUpdate,
    RowsReading,
    following,
)
from stratagem._ps_client.requests.request import Request
from stratagem_proto.wire.encodings import can_narrow

Found = TypeVar("Found")


class CopyGuard(AbstractContextManager[None]):
    """Tells values that come from servers apart from what the user writes to the copies.

    A thread enters it before values come into copies, and leaves once they are accepted: until
    then, such copies look as if the user had written them. Several may be inside. Trainable
    variables are rounded to `dtype` on their way to a training step, if there is one.
    """

    def __init__(self, servers: ServerGroup, dtype: torch.dtype | None) -> None:
        self._servers, self._dtype = servers, dtype
        self._lock = threading.Lock()
        self._begun = self._under_way = 0

    def __enter__(self) -> None:
        with self._lock:
            self._begun += 1
            self._under_way += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._under_way -= 1

    def scan_if_quiet(self, scan: Callable[[], list[Found]]) -> list[Found]:
        """Return what a scan of copies finds; nothing if a value may have come meanwhile.

        What is found beside a value that comes is found again by the next scan, if the user has
        written it.
        """
        begun = self._begun
        if self._under_way:
            return []
        found = scan()
        return found if self._begun == begun else []

    def rounded_to(self, variable: RemoteVariable, training: bool) -> torch.dtype | None:
        """Return what a variable is rounded to on its way; None for not at all."""
        dtype = self._dtype if training and not self._servers.snapshot else None
        if dtype is None or not variable.trainable:
            return None
        return dtype if can_narrow(variable.dtype, dtype) else None


class PullMode(Enum):
    """Whether answers to pushes bring all that the next run starts with.

    In any mode, an answer brings what its push has stepped.
    """

    NEVER = auto()
    ALWAYS = auto()
    IN_FLIGHT = auto()
    """The next but one, since the next does not wait for the answer."""


class Update(NamedTuple):
    """What one server gets of a step.

    Attributes:
        request: Pushes the gradients, and does nothing else.
        variables: Names of the variables that they are of.
        arrived: To be called once the server has them; None for nothing.
    """

    request: Request[list[int]]
    variables: AbstractSet[str]
    arrived: Callable[[], None] | None = None


class RowsBehind(NamedTuple):
    """Rows to read behind a step, in the request that pushes it.

    Attributes:
        readings: What to read, by server; each of them gets gradients.
        announced: What will be read behind the next step.
        arrived: To be called once all has come, with whether rows of it are on a disk.
    """

    readings: Mapping[int, Sequence[RowsReading]]
    announced: Mapping[int, Sequence[RowsReading]]
    arrived: Callable[[bool], None]


NO_ROWS_BEHIND = RowsBehind({}, {}, lambda _: None)


@dataclass(frozen=True)
class Push:
    """The gradients of a step.

    Attributes:
        optimizer: Name of the optimizer.
        permit: For the step.
        updates: What each server gets.
        copies: What is stepped and has a copy here, by server.
        is_awaited: Whether it is to be applied before the program goes on, come what may: a part of
            it is with the servers already.
        rows: What the next step looks up; none in flight.
    """

    optimizer: str
    permit: StepPermit
    updates: Mapping[int, Update]
    copies: Copies
    is_awaited: bool = False
    rows: RowsBehind = NO_ROWS_BEHIND


Prefetched: TypeAlias = tuple[int, Reading]
"""The version of a value that waits, and what it was read by."""


class ReceiveBuffer:
    """Memory where what one server sends with an answer waits for the step after it."""

    def __init__(self, variables: Sequence[RemoteVariable], guard: CopyGuard) -> None:
        self._variables = variables
        self._names = frozenset([variable.name for variable in variables])
        self._all = following(
            [
                Reading(
                    one.name,
                    torch.empty(one.shape, dtype=one.dtype),
                    narrowed_to=guard.rounded_to(one, training=True),
                )
                for one in variables
            ]
        )

    def asking(
        self, stepped: AbstractSet[str], waiting: Mapping[RemoteVariable, Prefetched]
    ) -> ReadsAfterUpdate:
        """Return how to ask for what is newer than what waits already.

        `stepped` are the names of the variables that have a gradient in the push.
        """
        # What is stepped is newer then, and is asked for by the same words each time.
        if stepped >= self._names:
            return self._all
        readings = []
        for variable, reading in zip(self._variables, self._all.readings, strict=True):
            if variable.name in stepped:
                readings.append(reading)
            elif variable in waiting:
                readings.append(reading._replace(newer_than=waiting[variable][0]))
            else:
                readings.append(variable.reading(reading.narrowed_to, reading.into))
        return following(readings)


class Asked(NamedTuple):
    """What a push asks for; all by server.

    Attributes:
        variables: The variables.
        buffers: Where they wait.
        following: How to ask for them.
    """

    variables: Copies
    buffers: Mapping[int, ReceiveBuffer]
    following: Mapping[int, ReadsAfterUpdate]


class PrefetchedValues:
    """What the next run starts with, as far as it has come with answers to pushes.

    Of each run: `use` (when it begins), `ask` (for its push), `keep` (the answer), `copy_into`.

    Attributes:
        expected: What the next run is expected to want, since the last one did; by server.
        nbytes: What their values take.
    """

    def __init__(self, servers: ServerGroup, guard: CopyGuard) -> None:
        self._servers, self._guard = servers, guard
        self.expected: Copies = {}
        self.nbytes = 0
        self._expected: Sequence[RemoteVariable] = ()
        self._covered: set[RemoteVariable] = set()
        self._waiting: dict[RemoteVariable, Prefetched] = {}
        # Allocating tensors costs more than keeping them; by server.
        self._free: dict[int, list[ReceiveBuffer]] = {}
        self._filled: list[tuple[int, ReceiveBuffer]] = []
        self._changes = servers.changes

    def expect(self, variables: Sequence[RemoteVariable]) -> None:
        """Take note of what a run starts with; the next one will want the same."""
        known = self._expected
        if len(variables) != len(known) or not all(map(is_, variables, known)):
            self._expected, self.expected = variables, by_server(variables)
            self.nbytes = sum(one.nbytes for one in variables)
            self._free = {server: [] for server in self.expected}
            self._filled.clear()

    def drop(self, fresh: Collection[RemoteVariable] = ()) -> None:
        """Forget what has come, since there is something newer.

        The next run needs no more of `fresh` than their copies.
        """
        self._waiting.clear()
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
        buffers, asking = {}, {}
        for server, free in self._free.items():
            buffer = free.pop() if free else ReceiveBuffer(self.expected[server], self._guard)
            buffers[server] = buffer
            asking[server] = buffer.asking(push.updates[server].variables, self._waiting)
        return Asked(self.expected, buffers, asking)

    def keep(self, asked: Asked, answers: Mapping[int, Answer]) -> None:
        """Keep what came for what was asked."""
        for server, variables in asked.variables.items():
            self._covered.update(variables)
            readings, versions = asked.following[server].readings, answers[server].versions
            for variable, reading, version in zip(variables, readings, versions, strict=True):
                if version != reading.newer_than:
                    self._waiting[variable] = version, reading
        if asked.variables is self.expected:
            self._filled += asked.buffers.items()

    def use(self, variables: Sequence[RemoteVariable], beside_push: bool = False) -> bool:
        """Bring copies up to date, if what has come is all that they need.

        With `beside_push`, a push is in flight that has asked for more.
        """
        waiting, is_complete = self._waiting, False
        # A run that only looks rows up has no copies that could be old.
        is_current = not variables or self._changes == self._servers.changes
        if (
            is_current
            and not self._servers.snapshot
            and (beside_push or self._covered.issuperset(variables))
        ):
            is_complete = all([v.copy_version is not None or v in waiting for v in variables])
        if is_complete and waiting:
            self.copy_into(variables)
        self.drop()
        return is_complete

    def copy_into(self, variables: Iterable[RemoteVariable]) -> None:
        """Bring copies up to date as far as something has come for them."""
        waiting = self._waiting
        each = [(one, *waiting.pop(one)) for one in variables if one in waiting]
        newer = [given for given in each if given[0].is_older_than(given[1])]
        if newer:
            leaves = [variable.leaf for variable, _, _ in newer]
            with torch.no_grad():
                torch._foreach_copy_(leaves, [reading.into for _, _, reading in newer])
        for variable, version, reading in newer:
            variable.replaced(version, reading.narrowed_to is not None)
