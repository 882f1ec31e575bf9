"""A record of the mutations that scheduled functions made, since a function may run twice.

A worker may be lost, and its function then runs again on another one. A mutation is recognised by
the identity of the function and by its number among the mutations that the function sends to this
server, whichever session sends it. This module is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.shares import is_used_up
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import ClosureIdentity, ClosureKey
from stratagem_psserver.exactly_once import spaces
from stratagem_psserver.exactly_once.intents import Intent
from stratagem_psserver.exactly_once.numbering import (
    Admission,
    Apply,
    Outcome,
    Refused,
    Replay,
    WaitForEarlier,
)
from stratagem_psserver.exactly_once.spaces import (
    SERVER,
    EndedClosures,
    Record,
    Records,
    Space,
    Spaces,
    SpaceUser,
)

# A worker runs a handful of functions. Without this limit, a coordinator that never says which
# functions have ended would fill the memory.
MAX_RECORDS = 262_144

# The limit of their bytes, since a reply can describe many variables.
MAX_RECORD_BYTES = 64 << 20


class ClosureLedger:
    """The exactly-once rule for scheduled functions.

    For each arrival of a mutation call `admit`; on `Apply` do its work and call `finish`.

    Args:
        living: Returns the programs that have a session; see `Spaces`.

    Attributes:
        adopted: The coordinators whose functions the last restoration brought.
    """

    def __init__(self, living: Callable[[], Container[bytes]] = frozenset) -> None:
        self._spaces = Spaces(living, self._dropped)
        self._applying: dict[tuple[bytes, int, int], SpaceUser] = {}
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

    def admit(self, key: ClosureKey, intent: Intent, user: SpaceUser = SERVER) -> Admission:
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
        space, number = self._spaces.get(key.identity.space), key.identity.number
        if number in space.ended:
            return Refused(_over(key.identity, self._spaces.is_over(key.identity.space)))
        name = _name(key)
        if name in self._applying:
            return WaitForEarlier(key.ordinal)
        record = space.unended.get(number, {}).get(key.ordinal)
        if record is not None:
            return _recognised(key, record, intent)
        try:
            self._require_room(key.identity.space, user)
        except ResourceExhaustedError as error:
            return Refused(error)
        self._applying[name] = user
        return Apply()

    def _require_room(self, name: bytes, user: SpaceUser) -> None:
        self._require_records(user)
        if name not in self._spaces:
            coming = {space: one for (space, _, _), one in self._applying.items()}
            self._spaces.require_room(name, user, coming)

    def finish(
        self,
        key: ClosureKey,
        intent: Intent,
        reply: RecordedReply | None,
        user: SpaceUser = SERVER,
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
        space, number = self._spaces.used_by(key.identity.space, user), key.identity.number
        if number not in space.ended:
            self._keep(space, number, Record(intent, reply))

    def require(self, name: bytes, ended: EndedClosures, user: SpaceUser) -> None:
        """Check that `end` may be called.

        Raises:
            InvalidArgumentError: The name is none.
            ResourceExhaustedError: The user's share is used up.
        """
        _check_space(name)
        self._spaces.require_room(name, user, {})
        self._spaces.require_few(name, ended, user)

    def end(self, name: bytes, ended: EndedClosures, user: SpaceUser = SERVER) -> EndedClosures:
        """Note that functions of a coordinator have ended, and return all that have."""
        space = self._spaces.used_by(name, user)
        space.ended = space.ended.united(ended)
        for number in [one for one in space.unended if one in space.ended]:
            self._forget(space.unended.pop(number))
        self._spaces.settle(name)
        return space.ended

    def spaces(self) -> Iterator[tuple[bytes, Space]]:
        """Yield each coordinator's name and functions."""
        yield from self._spaces

    def restore(self, name: bytes, space: Space) -> None:
        """Add a coordinator's functions as they are in a checkpoint."""
        mine = self._spaces.used_by(name, space.user)
        mine.ended = space.ended
        for number, records in space.unended.items():
            for record in records.values():
                self._keep(mine, number, record)
        self._spaces.settle(name)

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

    def _keep(self, space: Space, number: int, record: Record) -> None:
        space.unended.setdefault(number, {})[record.reply.sequence] = record
        self._count += 1
        self._nbytes += record.nbytes

    def _forget(self, records: Records) -> None:
        self._count -= len(records)
        self._nbytes -= sum(record.nbytes for record in records.values())

    def _dropped(self, space: Space) -> None:
        for records in space.unended.values():
            self._forget(records)

    def _require_records(self, user: SpaceUser) -> None:
        def own() -> list[Space]:
            return [space for _, space in self._spaces if space.user.client == user.client]

        def count() -> int:
            return sum(space.count for space in own())

        def nbytes() -> int:
            return sum(space.nbytes for space in own())

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


def _over(identity: ClosureIdentity, is_forgotten: bool) -> FailedPreconditionError:
    if is_forgotten:
        return FailedPreconditionError(
            f"{label(identity)} is over, like all of that coordinator: it has ended, or its "
            f"program had no session here while the server had {spaces.MAX_SPACES} others to "
            "remember; nothing of it is applied any more. Make another ClusterCoordinator"
        )
    return FailedPreconditionError(
        f"{label(identity)} has ended: it ran again on another worker, or was "
        "cancelled, while this one was not heard of; nothing of it is applied any more"
    )
