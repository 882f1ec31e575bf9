"""How a request is known again: by its number in its session, and by what it changes.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import Any

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    StratagemError,
)
from stratagem_proto.v1 import checkpoint_pb2, closed_step_pb2, consistency_pb2, draws_pb2
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import RequestKey
from stratagem_proto.v1.variable_requests_pb2 import (
    AssignHeader,
    CreateVariablesHeader,
    DeleteVariablesRequest,
)
from stratagem_psserver.log.changes import Mutation

# A client has a handful of requests in flight. Without this limit, one that never acknowledges
# replies would fill the memory.
MAX_UNACKNOWLEDGED = 65_536

# The limit of their bytes, since a reply can describe many variables.
MAX_REPLY_BYTES = 64 << 20


@dataclass(frozen=True)
class Apply:
    """The request is to be applied now; the caller then calls `finish`."""


@dataclass(frozen=True)
class Replay:
    """The request was applied before, with this reply."""

    reply: RecordedReply


@dataclass(frozen=True)
class WaitForEarlier:
    """The request has to wait for an earlier one, or for another arrival of itself."""

    sequence: int


@dataclass(frozen=True)
class Refused:
    """The request can never be applied."""

    error: StratagemError


Outcome = Replay | Refused
Admission = Apply | Replay | WaitForEarlier | Refused


@dataclass
class Numbering:
    """The exactly-once rule of one session.

    For each arrival of a request call `admit`; on `Apply` do its work and call `finish`. At any
    time at most one request is being applied, and requests are applied in the order of their
    numbers.
    """

    acknowledged: int = 0
    last: int = 0
    _applying: int | None = None
    _replies: dict[int, RecordedReply] = field(default_factory=dict)
    _reply_bytes: int = 0

    def outcome(self, key: RequestKey) -> Outcome | None:
        """Record what a request acknowledges, and return its outcome if that is known already."""
        if key.sequence <= key.acknowledged:
            return Refused(
                InvalidArgumentError(
                    f"request {key.sequence} acknowledges {key.acknowledged}; a "
                    "request is numbered from 1, above all that it acknowledges"
                )
            )
        if key.acknowledged > self.acknowledged:
            self._acknowledge(key.acknowledged)
        if key.sequence <= self.acknowledged:
            return Refused(
                FailedPreconditionError(
                    f"request {key.sequence} is over: its own client acknowledged all replies "
                    f"up to {self.acknowledged}; it will not be applied again"
                )
            )
        reply = self._replies.get(key.sequence)
        return Replay(reply) if reply is not None else None

    def admit(self, key: RequestKey) -> Admission:
        """Decide what to do with a request that has arrived."""
        known = self.outcome(key)
        if known is not None:
            return known
        if self._applying is not None:
            return WaitForEarlier(self._applying)
        following = max(self.last, self.acknowledged) + 1
        if key.sequence > following:
            return WaitForEarlier(following)
        if len(self._replies) >= MAX_UNACKNOWLEDGED or self._reply_bytes >= MAX_REPLY_BYTES:
            return Refused(
                ResourceExhaustedError(
                    f"{len(self._replies)} replies of this session await their "
                    "acknowledgement; raise `acknowledged` in the requests"
                )
            )
        self._applying = key.sequence
        return Apply()

    def finish(self, reply: RecordedReply | None) -> None:
        """End a request for which `admit` returned `Apply`.

        Args:
            reply: The answer to its repetitions; None if its failure was temporary, so that a
                repetition is to be applied.
        """
        sequence, self._applying = self._applying, None
        if reply is None or sequence is None:
            return
        self.last = sequence
        if sequence > self.acknowledged:
            self._keep(reply)

    @property
    def is_applying(self) -> bool:
        """Whether a request is being applied."""
        return self._applying is not None

    def repeat(self, key: RequestKey, reply: RecordedReply) -> None:
        """Note a request that a log says was finished, in the order of the log."""
        self._acknowledge(key.acknowledged)
        self._applying = key.sequence
        self.finish(reply)

    def replies(self) -> Sequence[RecordedReply]:
        """Return the replies that the client has not acknowledged."""
        return list(self._replies.values())

    @classmethod
    def restored(cls, acknowledged: int, last: int, replies: Iterable[RecordedReply]) -> Numbering:
        """Return the numbering that a checkpoint contains."""
        numbering = cls(acknowledged, last)
        for reply in replies:
            numbering._keep(reply)
        return numbering

    def _keep(self, reply: RecordedReply) -> None:
        self._replies[reply.sequence] = reply
        self._reply_bytes += reply.ByteSize()

    def _acknowledge(self, sequence: int) -> None:
        if sequence <= self.acknowledged:
            return
        self.acknowledged = sequence
        for ended in [number for number in self._replies if number <= sequence]:
            self._reply_bytes -= self._replies.pop(ended).ByteSize()


# The most variables that a message names.
_NAMED = 3

# Longer intents are not cached: the names have not been checked, so a client could send any length.
_CACHED_CHARACTERS = 1_000


@dataclass(frozen=True)
class Intent:
    """What a mutation does to which variables, without the values.

    Attributes:
        summary: A description for messages, for instance "Assign of 'counter'".
        digest: A hash of the method and of all names.
    """

    summary: str
    digest: bytes


def intent_of(request: Mutation) -> Intent:
    """Return what a mutation does."""
    kind = type(request)
    # Sorted, since the order of a set of names differs between processes.
    names = tuple(sorted(_NAMES[kind](request)))
    is_short = len(names) <= _NAMED and sum(map(len, names)) <= _CACHED_CHARACTERS
    return (_cached_intent if is_short else _intent)(kind, names)


def _intent(kind: type, names: tuple[str, ...]) -> Intent:
    method = kind.__name__.removesuffix("Header").removesuffix("Request")
    digest = blake2b("\0".join([method, *names]).encode(), digest_size=16).digest()
    if not names:
        return Intent(method, digest)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return Intent(f"{method} of {', '.join(map(repr, names[:_NAMED]))}{more}", digest)


# Scheduled functions repeat the same few intents.
_cached_intent = lru_cache(maxsize=256)(_intent)


def _written(header: pb.UpdateHeader) -> Iterable[str]:
    return chain(
        (each.variable for each in header.gradients),
        (each.variable for each in header.bindings if each.variable),
    )


_NAMES: Mapping[type, Callable[[Any], Iterable[str]]] = {
    CreateVariablesHeader: lambda header: (one.name for one in header.variables),
    DeleteVariablesRequest: lambda request: request.names,
    AssignHeader: lambda header: [one.variable for one in header.assignments],
    pb.UpdateHeader: _written,
    pb.CommitContributionRequest: lambda request: [request.step.group],
    closed_step_pb2.FinishStepRequest: lambda request: [request.group],
    consistency_pb2.SetConsistencyRequest: lambda request: [request.group],
    checkpoint_pb2.RestoreVariablesRequest: lambda request: [],
    draws_pb2.OpenPassRequest: lambda request: [request.ledger],
    draws_pb2.DrawBatchRequest: lambda request: [request.ledger],
}
"""By class of request: returns the names of what it changes."""
