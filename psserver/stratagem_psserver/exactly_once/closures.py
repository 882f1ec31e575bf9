"""A record of the mutations that scheduled functions made, since a function may run twice.

A worker may be lost, and its function then runs again on another one. A mutation is recognised by
the identity of the function and by its number among the mutations that the function sends to this
server, whichever session sends it.

The numbering of sessions would not do: it forgets a reply once its client has acknowledged it, and
the worker that sends a mutation again has seen none. So a record stays until its function has
ended, and has a digest of what was asked for. This module is pure.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import ClosureIdentity, ClosureKey
from stratagem_psserver.exactly_once.numbering import (
    Admission,
    Apply,
    Intent,
    Outcome,
    Refused,
    Replay,
    WaitForEarlier,
)
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_rpc.shares import is_used_up, share_of

# The coordinators that are known with their functions.
MAX_COORDINATORS = 1_024

# The coordinators of which it is only known that they are over. A request of a function is not
# under way for as long as so many come and go.
MAX_OVER = 10_000

# The numbers of functions, of all coordinators, that have not ended although later ones have.
MAX_UNENDED = 262_144

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

    @property
    def are_all(self) -> bool:
        """Whether these are all functions, those to come included."""
        return self.through == _ALL and not self.unended

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


class Requester(NamedTuple):
    """Who makes requests in the name of a coordinator.

    Attributes:
        program: The program; the session where that belongs to none.
        client: The label of the session, whose share the coordinator counts in. "" is the server,
            which reads a log or a checkpoint.
    """

    program: bytes = b""
    client: str = ""

    @classmethod
    def from_session(cls, session: Session) -> Requester:
        """Return the user whose session this is."""
        return cls(session.program or session.id, session.label)


SERVER = Requester()


@dataclass
class Coordinator:
    """The functions of one coordinator.

    Attributes:
        ended: The functions that have ended.
        unended: The records of the other functions, by the number of the function.
        user: Who has made the last request in its name.
    """

    ended: EndedClosures = field(default_factory=EndedClosures)
    unended: dict[int, Records] = field(default_factory=dict)
    user: Requester = SERVER

    @property
    def count(self) -> int:
        """The number of records."""
        return sum(map(len, self.unended.values()))

    @property
    def nbytes(self) -> int:
        """The approximate size of the records."""
        return sum(one.nbytes for records in self.unended.values() for one in records.values())


class Coordinators:
    """The coordinators of a server.

    A coordinator is known as long as its program has a session. Of those without one, the server
    forgets the one that was not heard of for longest when it needs the place. It remembers then
    that this coordinator is over: were its functions new to the server, what they have changed
    would be changed again.

    Args:
        living: Returns the programs that have a session.
        dropped: Told of each coordinator whose records are forgotten.
    """

    def __init__(
        self, living: Callable[[], Container[bytes]], dropped: Callable[[Coordinator], None]
    ) -> None:
        self._living, self._dropped = living, dropped
        # Those that were heard of last are at the end.
        self._known: OrderedDict[bytes, Coordinator] = OrderedDict()
        self._over: OrderedDict[bytes, Requester] = OrderedDict()

    def __iter__(self) -> Iterator[tuple[bytes, Coordinator]]:
        yield from self._known.items()
        for name, user in self._over.items():
            yield name, Coordinator(EndedClosures.all(), user=user)

    def __contains__(self, name: bytes) -> bool:
        return name in self._known or name in self._over

    def is_over(self, name: bytes) -> bool:
        """Return whether nothing of a coordinator is applied any more."""
        return name in self._over

    def get(self, name: bytes) -> Coordinator:
        """Return the functions of a coordinator, which need not be known; it leaves no trace."""
        if name in self._over:
            return Coordinator(EndedClosures.all())
        return self._known.get(name) or Coordinator()

    def require_room(self, name: bytes, user: Requester, coming: Mapping[bytes, Requester]) -> None:
        """Check that a coordinator is known or may be.

        Args:
            name: The coordinator.
            user: Who asks in its name.
            coming: Coordinators that will be known once what is being applied is.

        Raises:
            ResourceExhaustedError: The user's share is used up.
        """
        if name in self or name in coming or not user.client:
            return
        living = self._living()
        clients = [one.user.client for one in self._known.values() if one.user.program in living]
        clients += [one.client for one in coming.values()]
        own = clients.count(user.client)
        share = share_of(MAX_COORDINATORS, len(clients) - own)
        if own >= share:
            raise ResourceExhaustedError(
                f"{user.client} has {own} coordinators on this server, and its share is {share}: "
                f"three quarters of what others leave of {MAX_COORDINATORS}. Use one "
                "ClusterCoordinator for all functions of a program; those of a program that has "
                "ended do not count"
            )

    def require_few(self, name: bytes, ended: EndedClosures, user: Requester) -> None:
        """Check that what is told of ended functions has few exceptions.

        Raises:
            ResourceExhaustedError: With them the user's share is used up.
        """
        if not ended.unended or not user.client:
            return
        own = others = 0
        for known, coordinator in self._known.items():
            if known != name and coordinator.user.client == user.client:
                own += len(coordinator.ended.unended)
            elif known != name:
                others += len(coordinator.ended.unended)
        share = share_of(MAX_UNENDED, others)
        if own + len(ended.unended) > share:
            raise ResourceExhaustedError(
                f"{user.client} tells of {len(ended.unended)} functions that have not ended "
                f"although later ones have, besides {own}, and its share is {share}: three "
                f"quarters of what others leave of {MAX_UNENDED}. Schedule fewer at a time"
            )

    def used_by(self, name: bytes, user: Requester) -> Coordinator:
        """Return the functions of a coordinator, which is known from now on."""
        if name in self._over:
            return Coordinator(EndedClosures.all())
        coordinator = self._known.get(name)
        if coordinator is None:
            coordinator = self._known[name] = Coordinator()
            if len(self._known) > MAX_COORDINATORS:
                self._forget_one(name)
        self._known.move_to_end(name)
        coordinator.user = user if user.client else coordinator.user
        return coordinator

    def settle(self, name: bytes) -> None:
        """Keep only that a coordinator is over, if all of its functions have ended."""
        coordinator = self._known.get(name)
        if coordinator is not None and coordinator.ended.are_all:
            self._end(name)

    def _forget_one(self, newcomer: bytes) -> None:
        living = self._living()
        for name, coordinator in self._known.items():
            if name != newcomer and coordinator.user.program not in living:
                return self._end(name)

    def _end(self, name: bytes) -> None:
        coordinator = self._known.pop(name)
        self._dropped(coordinator)
        self._over[name] = coordinator.user
        if len(self._over) > MAX_OVER:
            del self._over[self._least_missed(coordinator.user.client)]

    def _least_missed(self, client: str) -> bytes:
        """Return the oldest without a session; else the oldest of the client that adds one."""
        living = self._living()
        gone = (name for name, user in self._over.items() if user.program not in living)
        own = (name for name, user in self._over.items() if user.client == client)
        return next(gone, None) or next(own)


# A worker runs a handful of functions. Without this limit, a coordinator that never says which
# functions have ended would fill the memory.
MAX_RECORDS = 262_144

# The limit of their bytes, since a reply can describe many variables.
MAX_RECORD_BYTES = 64 << 20


class ClosureLedger:
    """The exactly-once rule for scheduled functions.

    For each arrival of a mutation call `admit`; on `Apply` do its work and call `finish`.

    Args:
        living: Returns the programs that have a session; see `Coordinators`.

    Attributes:
        adopted: The coordinators whose functions the last restoration brought.
    """

    def __init__(self, living: Callable[[], Container[bytes]] = frozenset) -> None:
        self._coordinators = Coordinators(living, self._dropped)
        self._applying: dict[tuple[bytes, int, int], Requester] = {}
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

    def admit(self, key: ClosureKey, intent: Intent, user: Requester = SERVER) -> Admission:
        """Decide what to do with a mutation that has arrived.

        Args:
            key: The key of the mutation.
            intent: What it does.
            user: Who asks for it.

        Raises:
            InvalidArgumentError: The key is malformed.
        """
        _check(key)
        # What is not applied is in no record, so it must leave no trace.
        coordinator, number = self._coordinators.get(key.identity.space), key.identity.number
        if number in coordinator.ended:
            return Refused(_over(key.identity, self._coordinators.is_over(key.identity.space)))
        name = _name(key)
        if name in self._applying:
            return WaitForEarlier(key.ordinal)
        record = coordinator.unended.get(number, {}).get(key.ordinal)
        if record is not None:
            return _recognised(key, record, intent)
        try:
            self._require_room(key.identity.space, user)
        except ResourceExhaustedError as error:
            return Refused(error)
        self._applying[name] = user
        return Apply()

    def _require_room(self, name: bytes, user: Requester) -> None:
        self._require_records(user)
        if name not in self._coordinators:
            coming = {space: one for (space, _, _), one in self._applying.items()}
            self._coordinators.require_room(name, user, coming)

    def finish(
        self,
        key: ClosureKey,
        intent: Intent,
        reply: RecordedReply | None,
        user: Requester = SERVER,
    ) -> None:
        """End a mutation for which `admit` returned `Apply`.

        Args:
            key: The key of the mutation.
            intent: What it does.
            reply: The answer to its repetitions; None if a repetition is to be applied.
            user: Who has asked for it.
        """
        self._applying.pop(_name(key), None)
        if reply is None:
            return
        coordinator = self._coordinators.used_by(key.identity.space, user)
        number = key.identity.number
        if number not in coordinator.ended:
            self._keep(coordinator, number, Record(intent, reply))

    def require(self, name: bytes, ended: EndedClosures, user: Requester) -> None:
        """Check that `end` may be called.

        Raises:
            InvalidArgumentError: The name is none.
            ResourceExhaustedError: The user's share is used up.
        """
        _check_coordinator(name)
        self._coordinators.require_room(name, user, {})
        self._coordinators.require_few(name, ended, user)

    def end(self, name: bytes, ended: EndedClosures, user: Requester = SERVER) -> EndedClosures:
        """Note that functions of a coordinator have ended, and return all that have."""
        coordinator = self._coordinators.used_by(name, user)
        coordinator.ended = coordinator.ended.united(ended)
        for number in [one for one in coordinator.unended if one in coordinator.ended]:
            self._forget(coordinator.unended.pop(number))
        self._coordinators.settle(name)
        return coordinator.ended

    def coordinators(self) -> Iterator[tuple[bytes, Coordinator]]:
        """Yield each coordinator's name and functions."""
        yield from self._coordinators

    def restore(self, name: bytes, coordinator: Coordinator) -> None:
        """Add a coordinator's functions as they are in a checkpoint."""
        mine = self._coordinators.used_by(name, coordinator.user)
        mine.ended = coordinator.ended
        for number, records in coordinator.unended.items():
            for record in records.values():
                self._keep(mine, number, record)
        self._coordinators.settle(name)

    def adopt(self, coordinators: Mapping[bytes, Coordinator]) -> None:
        """Replace the functions that the last restoration brought by those of another checkpoint.

        Args:
            coordinators: The functions, by coordinator names that nobody uses yet.
        """
        for name in self.adopted:
            self.end(name, EndedClosures.all())
        self.adopted = coordinators.keys()
        for name, coordinator in coordinators.items():
            self.restore(name, coordinator)

    def _keep(self, coordinator: Coordinator, number: int, record: Record) -> None:
        coordinator.unended.setdefault(number, {})[record.reply.sequence] = record
        self._count += 1
        self._nbytes += record.nbytes

    def _forget(self, records: Records) -> None:
        self._count -= len(records)
        self._nbytes -= sum(record.nbytes for record in records.values())

    def _dropped(self, coordinator: Coordinator) -> None:
        for records in coordinator.unended.values():
            self._forget(records)

    def _require_records(self, user: Requester) -> None:
        def own() -> list[Coordinator]:
            return [one for _, one in self._coordinators if one.user.client == user.client]

        def count() -> int:
            return sum(coordinator.count for coordinator in own())

        def nbytes() -> int:
            return sum(coordinator.nbytes for coordinator in own())

        are_many = is_used_up(MAX_RECORDS, self._count, count)
        if are_many or is_used_up(MAX_RECORD_BYTES, self._nbytes, nbytes):
            raise ResourceExhaustedError(
                f"{count()} mutations of scheduled functions are recorded for "
                f"{user.client or 'this server'}, in {nbytes()} bytes, until their coordinators "
                "say that these functions have ended; that is its share: three quarters of what "
                f"others leave of {MAX_RECORDS} and of {MAX_RECORD_BYTES} bytes. Repeat it in a "
                "moment, or let each function change less"
            )


def _name(key: ClosureKey) -> tuple[bytes, int, int]:
    return key.identity.space, key.identity.number, key.ordinal


def _check(key: ClosureKey) -> None:
    _check_coordinator(key.identity.space)
    if not key.identity.number or not key.ordinal:
        raise InvalidArgumentError(
            f"mutation {key.ordinal} of {label(key.identity)} has no valid key: both "
            "numbers begin with 1"
        )


def _check_coordinator(name: bytes) -> None:
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


def _over(identity: ClosureIdentity, is_forgotten: bool) -> FailedPreconditionError:
    if is_forgotten:
        return FailedPreconditionError(
            f"{label(identity)} is over, like all of that coordinator: it has ended, or its "
            f"program had no session here while the server had {MAX_COORDINATORS} others to "
            "remember; nothing of it is applied any more. Make another ClusterCoordinator"
        )
    return FailedPreconditionError(
        f"{label(identity)} has ended: it ran again on another worker, or was "
        "cancelled, while this one was not heard of; nothing of it is applied any more"
    )


def dump_closures(ledger: ClosureLedger) -> list[dict[str, Any]]:
    """Return all records, as JSON."""
    return [
        {
            "space": name.hex(),
            "through": coordinator.ended.through,
            "unended": sorted(coordinator.ended.unended),
            "user": [coordinator.user.program.hex(), coordinator.user.client],
            "recorded": [
                [number, [*map(_record_to_json, records.values())]]
                for number, records in coordinator.unended.items()
            ],
        }
        for name, coordinator in ledger.coordinators()
    ]


def restore_closures(ledger: ClosureLedger, facts: Iterable[dict[str, Any]]) -> None:
    """Add what `dump_closures` returned to an empty ledger."""
    for name, coordinator in closures_from_json(facts):
        ledger.restore(name, coordinator)


def closures_from_json(facts: Iterable[dict[str, Any]]) -> Iterator[tuple[bytes, Coordinator]]:
    """Yield each coordinator's name and functions, from what `dump_closures` returned."""
    for item in facts:
        ended = EndedClosures(item["through"], frozenset(item["unended"]))
        unended = dict[int, Records]()
        for number, recorded in item["recorded"]:
            records = unended[number] = {}
            for summary, digest, reply in recorded:
                known = RecordedReply.FromString(b64decode(reply))
                records[known.sequence] = Record(Intent(summary, bytes.fromhex(digest)), known)
        # Checkpoints of earlier releases do not say who used them.
        program, client = item.get("user", ("", ""))
        user = Requester(bytes.fromhex(program), client)
        yield bytes.fromhex(item["space"]), Coordinator(ended, unended, user)


def _record_to_json(record: Record) -> list[str]:
    reply = b64encode(record.reply.SerializeToString()).decode()
    return [record.intent.summary, record.intent.digest.hex(), reply]
