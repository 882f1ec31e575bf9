"""The coordinators whose functions a server knows, and which of them it may forget.

This module is pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from stratagem_proto.errors import ResourceExhaustedError
from stratagem_proto.shares import share_of
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_psserver.exactly_once.intents import Intent
from stratagem_psserver.exactly_once.session import Session

# The coordinators that are known with their functions.
MAX_SPACES = 1_024

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


class SpaceUser(NamedTuple):
    """Who makes requests in the name of a coordinator.

    Attributes:
        program: The program; the session where that belongs to none.
        client: The label of the session, whose share the coordinator counts in. "" is the server,
            which reads a log or a checkpoint.
    """

    program: bytes = b""
    client: str = ""

    @classmethod
    def of(cls, session: Session) -> SpaceUser:
        """Return the user whose session this is."""
        return cls(session.program or session.id, session.label)


SERVER = SpaceUser()


@dataclass
class Space:
    """The functions of one coordinator.

    Attributes:
        ended: The functions that have ended.
        unended: The records of the other functions, by the number of the function.
        user: Who has made the last request in its name.
    """

    ended: EndedClosures = field(default_factory=EndedClosures)
    unended: dict[int, Records] = field(default_factory=dict)
    user: SpaceUser = SERVER

    @property
    def count(self) -> int:
        """The number of records."""
        return sum(map(len, self.unended.values()))

    @property
    def nbytes(self) -> int:
        """The approximate size of the records."""
        return sum(one.nbytes for records in self.unended.values() for one in records.values())


class Spaces:
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
        self, living: Callable[[], Container[bytes]], dropped: Callable[[Space], None]
    ) -> None:
        self._living, self._dropped = living, dropped
        # Those that were heard of last are at the end.
        self._known: OrderedDict[bytes, Space] = OrderedDict()
        self._over: OrderedDict[bytes, SpaceUser] = OrderedDict()

    def __iter__(self) -> Iterator[tuple[bytes, Space]]:
        yield from self._known.items()
        for name, user in self._over.items():
            yield name, Space(EndedClosures.all(), user=user)

    def __contains__(self, name: bytes) -> bool:
        return name in self._known or name in self._over

    def is_over(self, name: bytes) -> bool:
        """Return whether nothing of a coordinator is applied any more."""
        return name in self._over

    def get(self, name: bytes) -> Space:
        """Return the functions of a coordinator, which need not be known; it leaves no trace."""
        if name in self._over:
            return Space(EndedClosures.all())
        return self._known.get(name) or Space()

    def require_room(self, name: bytes, user: SpaceUser, coming: Mapping[bytes, SpaceUser]) -> None:
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
        share = share_of(MAX_SPACES, len(clients) - own)
        if own >= share:
            raise ResourceExhaustedError(
                f"{user.client} has {own} coordinators on this server, and its share is {share}: "
                f"three quarters of what others leave of {MAX_SPACES}. Use one ClusterCoordinator "
                "for all functions of a program; those of a program that has ended do not count"
            )

    def require_few(self, name: bytes, ended: EndedClosures, user: SpaceUser) -> None:
        """Check that what is told of ended functions has few exceptions.

        Raises:
            ResourceExhaustedError: With them the user's share is used up.
        """
        if not ended.unended or not user.client:
            return
        own = others = 0
        for known, space in self._known.items():
            if known != name and space.user.client == user.client:
                own += len(space.ended.unended)
            elif known != name:
                others += len(space.ended.unended)
        share = share_of(MAX_UNENDED, others)
        if own + len(ended.unended) > share:
            raise ResourceExhaustedError(
                f"{user.client} tells of {len(ended.unended)} functions that have not ended "
                f"although later ones have, besides {own}, and its share is {share}: three "
                f"quarters of what others leave of {MAX_UNENDED}. Schedule fewer at a time"
            )

    def used_by(self, name: bytes, user: SpaceUser) -> Space:
        """Return the functions of a coordinator, which is known from now on."""
        if name in self._over:
            return Space(EndedClosures.all())
        space = self._known.get(name)
        if space is None:
            space = self._known[name] = Space()
            if len(self._known) > MAX_SPACES:
                self._forget_one(name)
        self._known.move_to_end(name)
        space.user = user if user.client else space.user
        return space

    def settle(self, name: bytes) -> None:
        """Keep only that a coordinator is over, if all of its functions have ended."""
        space = self._known.get(name)
        if space is not None and space.ended.are_all:
            self._end(name)

    def _forget_one(self, newcomer: bytes) -> None:
        living = self._living()
        for name, space in self._known.items():
            if name != newcomer and space.user.program not in living:
                return self._end(name)

    def _end(self, name: bytes) -> None:
        space = self._known.pop(name)
        self._dropped(space)
        self._over[name] = space.user
        if len(self._over) > MAX_OVER:
            del self._over[self._least_missed(space.user.client)]

    def _least_missed(self, client: str) -> bytes:
        """Return the oldest without a session; else the oldest of the client that adds one."""
        living = self._living()
        gone = (name for name, user in self._over.items() if user.program not in living)
        own = (name for name, user in self._over.items() if user.client == client)
        return next(gone, None) or next(own)
