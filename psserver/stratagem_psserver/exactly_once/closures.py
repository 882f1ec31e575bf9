"""A record of the mutations that scheduled functions made, since a function may run twice.

A worker may be lost, and its function then runs again on another one. A mutation is recognised by
the identity of the function and by its number among the mutations that the function sends to this
server, whichever session sends it. This module is pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import ClosureIdentity, ClosureKey
from stratagem_psserver.exactly_once.intents import Intent
from stratagem_psserver.exactly_once.numbering import (
    Admission,
    Apply,
    Outcome,
    Refused,
    Replay,
    WaitForEarlier,
)

# A worker runs a handful of functions. Without this limit, a coordinator that never says which
# functions have ended would fill the memory.
MAX_RECORDS = 262_144

# The limit of their bytes, since a reply can describe many variables.
MAX_RECORD_BYTES = 64 << 20

# The coordinators that are remembered.
MAX_SPACES = 1_024


# The largest number of a function.
_ALL = 2**64 - 1


@dataclass(frozen=True)
class EndedClosures:
    """The numbers of the functions that have ended: all up to a limit, with exceptions.

    Functions end roughly in the order of their numbers, so the exceptions are few.

    Attributes:
        through: The limit: no function with a higher number has ended.
        unended: The exceptions: numbers up to the limit whose functions have not ended.
    """

    through: int = 0
    unended: frozenset[int] = frozenset()

    def __contains__(self, number: int) -> bool:
        return number <= self.through and number not in self.unended

    @classmethod
    def all(cls) -> EndedClosures:
        """Return the numbers of all functions."""
        return cls(_ALL)

    def united(self, other: EndedClosures) -> EndedClosures:
        """Return the functions that have ended according to either of both.

        Messages may overtake each other, so the later one to arrive can be the older one.
        """
        earlier, later = sorted((self, other), key=lambda each: each.through)
        unended = frozenset(one for one in later.unended if one not in earlier)
        return EndedClosures(later.through, unended)


@dataclass(frozen=True)
class Record:
    """One mutation of a function.

    Attributes:
        intent: What it does.
        reply: Its answer, whose `sequence` is the number of the mutation.
    """

    intent: Intent
    reply: RecordedReply

    @property
    def nbytes(self) -> int:
        """Its approximate size."""
        return self.reply.ByteSize() + len(self.intent.summary)


Records: TypeAlias = dict[int, Record]
"""The records of one function, by the number of the mutation."""


@dataclass
class Space:
    """The functions of one coordinator.

    Attributes:
        ended: The functions that have ended.
        unended: The records of the other functions, by the number of the function.
    """

    ended: EndedClosures = field(default_factory=EndedClosures)
    unended: dict[int, Records] = field(default_factory=dict)


class ClosureLedger:
    """The exactly-once rule for scheduled functions.

    For each arrival of a mutation call `admit`; on `Apply` do its work and call `finish`.

    Attributes:
        adopted: The coordinators whose functions the last restoration brought.
    """

    def __init__(self) -> None:
        self._spaces: OrderedDict[bytes, Space] = OrderedDict()
        self._applying: set[tuple[bytes, int, int]] = set()
        self._count = 0
        self._nbytes = 0
        self.adopted: Collection[bytes] = ()

    @property
    def count(self) -> int:
        """The number of recorded mutations, all of functions that have not ended."""
        return self._count

    @property
    def nbytes(self) -> int:
        """The approximate size of these records."""
        return self._nbytes

    def admit(self, key: ClosureKey, intent: Intent) -> Admission:
        """Decide what to do with a mutation that has arrived.

        Raises:
            InvalidArgumentError: The key is malformed.
        """
        _check(key)
        # What is not applied is in no record, so it must leave no trace.
        space, number = self._spaces.get(key.identity.space) or Space(), key.identity.number
        if number in space.ended:
            return Refused(_over(key.identity))
        name = _name(key)
        if name in self._applying:
            return WaitForEarlier(key.ordinal)
        record = space.unended.get(number, {}).get(key.ordinal)
        if record is not None:
            return _recognised(key, record, intent)
        if self._count >= MAX_RECORDS or self._nbytes >= MAX_RECORD_BYTES:
            return Refused(self._full())
        self._applying.add(name)
        return Apply()

    def finish(self, key: ClosureKey, intent: Intent, reply: RecordedReply | None) -> None:
        """End a mutation for which `admit` returned `Apply`.

        Args:
            key: The key of the mutation.
            intent: What it does.
            reply: The answer to its repetitions; None if a repetition is to be applied.
        """
        self._applying.discard(_name(key))
        if reply is None:
            return
        space, number = self._space(key.identity.space), key.identity.number
        if number not in space.ended:
            self._keep(space, number, Record(intent, reply))

    def end(self, name: bytes, ended: EndedClosures) -> EndedClosures:
        """Note that functions of a coordinator have ended, and return all that have."""
        _check_space(name)
        space = self._space(name)
        space.ended = space.ended.united(ended)
        for number in [one for one in space.unended if one in space.ended]:
            self._forget(space.unended.pop(number))
        return space.ended

    def spaces(self) -> Iterator[tuple[bytes, Space]]:
        """Yield each coordinator's name and functions."""
        yield from self._spaces.items()

    def restore(self, name: bytes, space: Space) -> None:
        """Add a coordinator's functions as they are in a checkpoint."""
        mine = self._space(name)
        mine.ended = space.ended
        for number, records in space.unended.items():
            for record in records.values():
                self._keep(mine, number, record)

    def adopt(self, spaces: Mapping[bytes, Space]) -> None:
        """Replace the functions that the last restoration brought by those of another checkpoint.

        Args:
            spaces: The functions, by coordinator names that nobody uses yet.
        """
        for name in self.adopted:
            self.end(name, EndedClosures.all())
        self.adopted = spaces.keys()
        for name, space in spaces.items():
            self.restore(name, space)

    def _space(self, name: bytes) -> Space:
        space = self._spaces.get(name)
        if space is None:
            return self._added(name)
        self._spaces.move_to_end(name)
        return space

    def _added(self, name: bytes) -> Space:
        space = self._spaces[name] = Space()
        while len(self._spaces) > MAX_SPACES:
            _, oldest = self._spaces.popitem(last=False)
            for records in oldest.unended.values():
                self._forget(records)
        return space

    def _keep(self, space: Space, number: int, record: Record) -> None:
        space.unended.setdefault(number, {})[record.reply.sequence] = record
        self._count += 1
        self._nbytes += record.nbytes

    def _forget(self, records: Records) -> None:
        self._count -= len(records)
        self._nbytes -= sum(record.nbytes for record in records.values())

    def _full(self) -> ResourceExhaustedError:
        return ResourceExhaustedError(
            f"{self._count} mutations of scheduled functions are recorded, in "
            f"{self._nbytes} bytes, until their coordinators say that these functions "
            "have ended; repeat it in a moment, or let each function change less"
        )


def _name(key: ClosureKey) -> tuple[bytes, int, int]:
    return key.identity.space, key.identity.number, key.ordinal


def _check(key: ClosureKey) -> None:
    _check_space(key.identity.space)
    if not key.identity.number or not key.ordinal:
        raise InvalidArgumentError(
            f"mutation {key.ordinal} of {label(key.identity)} has no valid key: both "
            "numbers begin with 1"
        )


def _check_space(name: bytes) -> None:
    if len(name) != SESSION_ID_BYTES:
        raise InvalidArgumentError(
            f"a coordinator is named by {SESSION_ID_BYTES} bytes, not by {len(name)}"
        )


def label(identity: ClosureIdentity) -> str:
    """Return the name of a function for messages."""
    return f"function {identity.number} of coordinator {identity.space.hex()[:8]}"


def _recognised(key: ClosureKey, record: Record, intent: Intent) -> Outcome:
    if record.intent.digest == intent.digest:
        return Replay(record.reply)
    return Refused(
        FailedPreconditionError(
            f"{label(key.identity)} runs again because its worker was lost, and does "
            f"not do the same: its mutation {key.ordinal} of this server was "
            f"{record.intent.summary}, but now it is {intent.summary}. So that all is "
            "applied once, let what a scheduled function writes, and in which order, "
            "depend on its arguments and its data alone"
        )
    )


def _over(identity: ClosureIdentity) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"{label(identity)} has ended: it ran again on another worker, or was "
        "cancelled, while this one was not heard of; nothing of it is applied any more"
    )
