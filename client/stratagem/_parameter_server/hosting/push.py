"""A step that servers apply when it comes, and the values that come back with the answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, auto
from operator import is_
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import torch

from stratagem._parameter_server.hosting.steps import StepPermit
from stratagem._parameter_server.variables.variable import Copies, RemoteVariable, by_server
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.reads import Reading, ReadsAfterUpdate, RowsReading, following
from stratagem._ps_client.requests.request import Request
from stratagem_proto.wire.encodings import can_narrow

Found = TypeVar("Found")


class Pulls(AbstractContextManager[None]):
    """Entered while values come into copies; by several threads, if need be.

    Until they are accepted, such copies look as if the user had written them. Trainable variables
    are rounded to `dtype` on their way to a training step, if there is one.
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

    def apart(self, look: Callable[[], list[Found]]) -> list[Found]:
        """Return what a look at copies finds, unless a value may have come meanwhile.

        What is found beside a value that comes is found again by the next look, if the user has
        written it.
        """
        begun = self._begun
        if self._under_way:
            return []
        found = look()
        return found if self._begun == begun else []

    def rounded_to(self, variable: RemoteVariable, training: bool) -> torch.dtype | None:
        """Return what a variable is rounded to on its way; None for not at all."""
        dtype = self._dtype if training and not self._servers.snapshot else None
        if dtype is None or not variable.trainable:
            return None
        return dtype if can_narrow(variable.dtype, dtype) else None


# Values wait in memory of their own for the step that takes them. What takes longer to copy from
# there than a request takes is not worth it.
_MOST_PREFETCHED_BYTES = 8 << 20


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
        arrived: To be called once all has come.
    """

    readings: Mapping[int, Sequence[RowsReading]]
    arrived: Callable[[], None]


NO_ROWS_BEHIND = RowsBehind({}, lambda: None)


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


class Pushing(Protocol):
    """How the gradients of one worker reach the servers, and what comes back.

    Each run begins with `refresh`. What it computes is sent by `apply`, once for each step of an
    optimizer. Anybody may call the other two in between.
    """

    def refresh(self, variables: Sequence[RemoteVariable] | None) -> bool:
        """Begin a run.

        Args:
            variables: What the run needs copies of; None for a step outside of runs, whose copies
                are fresh by agreement.

        Returns:
            Whether the copies are as fresh as they have to be; if not, somebody has to read them.
        """

    def apply(self, push: Push) -> None:
        """Have servers apply gradients.

        Afterwards the copies of what is stepped are fresh, unless the program goes on while the
        push is in flight. No other copies are written, since graphs that are still to be
        differentiated may need them as they are.

        Raises:
            StratagemError: A server could not be reached, or has refused its part.
        """

    def flush(self) -> None:
        """Wait until all that was sent is applied.

        Raises:
            StratagemError: It was not. The next call does not raise that again.
        """

    def drop(self, fresh: Collection[RemoteVariable] = ()) -> None:
        """Forget the values that have come for the next run.

        Args:
            fresh: Those variables whose copies are all that it needs of them.
        """


class PullMode(Enum):
    """Whether answers to pushes bring all that the next run starts with.

    In any mode, an answer brings what its push has stepped.
    """

    NEVER = auto()
    ALWAYS = auto()
    IN_FLIGHT = auto()
    """The next but one, since the next does not wait for the answer."""


@dataclass
class RunSoFar:
    """The run that pushes are a part of.

    Attributes:
        is_run: Whether it is one, and not a step outside of runs.
        follows_lone_push: Whether the run before had one push at most.
        pushes: How many it has had, with the one that is to be sent.
    """

    is_run: bool
    follows_lone_push: bool
    pushes: int = 0


class Expected(NamedTuple):
    """What the next run is expected to start with.

    Attributes:
        variables: The variables.
        by_server: The same.
        nbytes: What their values take.
    """

    variables: Sequence[RemoteVariable]
    by_server: Copies
    nbytes: int


class Way(Enum):
    """How a push is sent."""

    PLAIN = auto()
    """Alone; what it has stepped is read with the answer."""

    FUSED = auto()
    """With a read of what the next run starts with."""

    IN_FLIGHT = auto()
    """Likewise, and the program does not wait for the answer."""


def way_of(push: Push, mode: PullMode, run: RunSoFar, expected: Expected, first: int) -> Way:
    """Return how to send a push; there is no other in flight.

    Runs that push several times are not worth fusing: all answers but the last would bring values
    that nobody uses. `expected` is what the next run needs, and `first` the server that gives
    permits for steps.
    """
    flies = mode is PullMode.IN_FLIGHT
    if (
        not push.permit.consistency._is_free
        or mode is PullMode.NEVER
        or not (run.is_run or flies)
        or not run.follows_lone_push
        or run.pushes != 1
        or not expected.by_server
        or not push.updates.keys() >= expected.by_server.keys()
        or first not in push.updates
        or not (flies or expected.nbytes <= _MOST_PREFETCHED_BYTES)
    ):
        return Way.PLAIN
    return Way.IN_FLIGHT if flies and not push.is_awaited else Way.FUSED


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
