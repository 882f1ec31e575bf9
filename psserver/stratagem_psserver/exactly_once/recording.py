"""Applying requests once, and recording their outcomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar

from google.protobuf.message import Message

from stratagem_proto.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    MalformedStreamError,
    ResourceExhaustedError,
    StratagemError,
    UnavailableError,
)
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import ClosureKey
from stratagem_proto.wire.status import from_record, to_record
from stratagem_psserver.exactly_once.closures import ClosureLedger, label
from stratagem_psserver.exactly_once.intents import Intent, intent_of
from stratagem_psserver.exactly_once.numbering import (
    Admission,
    Outcome,
    Refused,
    Replay,
    WaitForEarlier,
)
from stratagem_psserver.exactly_once.spaces import SpaceUser
from stratagem_psserver.limits import allocating
from stratagem_psserver.log.changes import LoggedRequest, Mutation
from stratagem_psserver.waiting import AwaitedClient, Waiter, Waits

# These errors are temporary: a repetition may succeed, so they are not recorded. A stream that was
# cut can look like one that its client ended too early.
PASSING = (
    CancelledError,
    DeadlineExceededError,
    MalformedStreamError,
    ResourceExhaustedError,
    UnavailableError,
)

Response = TypeVar("Response", bound=Message)


class ForLog:
    """A request for the log, which is made when its turn has come.

    Whether changes are logged may be another thing by then than when the request arrived.

    Args:
        make: Returns the request for the log; None if changes are not logged.

    Attributes:
        logged: What that has returned; None before.
    """

    __slots__ = ("_make", "logged")

    def __init__(self, make: Callable[[], LoggedRequest | None] = lambda: None) -> None:
        self._make = make
        self.logged: LoggedRequest | None = None

    def prepare(self) -> None:
        """Copy what is logged, before the request changes anything."""
        self.logged = self._make()

    def begin(self) -> None:
        """Note that the change begins."""
        if self.logged is not None:
            self.logged.applied = True


class Work(Generic[Response]):
    """A request that is ready to be applied.

    Args:
        apply: Applies it.
        response_type: The class of the response, by which a recorded one is parsed.
        for_log: The request for the log; by default it is not logged.
    """

    __slots__ = ("apply", "for_log", "response_type")

    def __init__(
        self,
        apply: Callable[[], Awaitable[Response]],
        response_type: type[Response],
        for_log: ForLog | None = None,
    ) -> None:
        self.apply, self.response_type, self.for_log = apply, response_type, for_log or ForLog()


async def apply_and_record(
    number: int,
    work: Work[Response],
    passing: tuple[type[StratagemError], ...],
    record: Callable[[RecordedReply | None], None],
) -> Response:
    """Apply a request and record its outcome.

    Args:
        number: The number under which the reply is recorded.
        work: The request.
        passing: Temporary errors, which are not recorded.
        record: Called with the reply to record; with None if nothing is recorded.
    """
    reply: RecordedReply | None = None
    try:
        with allocating("use more servers, or smaller variables and requests"):
            work.for_log.prepare()
            response = await work.apply()
        encoded = response.SerializeToString()
        reply = RecordedReply(sequence=number, response=encoded)
        return response
    except passing:
        raise
    except Exception as error:
        reply = RecordedReply(sequence=number, status=to_record(error))
        raise
    finally:
        record(reply)


def recorded_response(known: Outcome, response_type: type[Response]) -> Response:
    """Return the response of a request that is not to be applied.

    Raises:
        StratagemError: The request is refused, or failed when it was applied.
    """
    if isinstance(known, Refused):
        raise known.error
    if known.reply.status.code:
        raise from_record(known.reply.status)
    return response_type.FromString(known.reply.response)


# The longest time for one mutation.
_TURN_SECONDS = 20.0

# A request may be aborted for its session, and succeed in that of another worker.
NOT_RECORDED = (*PASSING, AbortedError)


class ClosureTurns:
    """Applies each mutation of a scheduled function once, over all sessions."""

    def __init__(self, ledger: ClosureLedger, waits: Waits) -> None:
        self._ledger, self._waits = ledger, waits
        self._applying: dict[tuple[str, bytes], str] = {}

    async def once(self, request: Mutation, work: Work[Response], user: SpaceUser) -> Response:
        """Apply a mutation of a scheduled function, or repeat its reply.

        Args:
            request: The mutation.
            work: What applies it.
            user: Who asks for it, and is shown to others that wait for this mutation.
        """
        key, intent = request.key.closure, intent_of(request)
        subject = _subject(key)

        def admission() -> Admission | None:
            decided = self._ledger.admit(key, intent, user)
            return None if isinstance(decided, WaitForEarlier) else decided

        decided = admission() or await self._waits.until(
            subject, admission, _TURN_SECONDS, self._waiter(key, user.client)
        )
        if decided is None:
            raise UnavailableError(
                f"mutation {key.ordinal} of {label(key.identity)} is being applied for "
                "another worker; repeat it in a moment"
            )
        if isinstance(decided, (Replay, Refused)):
            return recorded_response(decided, work.response_type)
        self._applying[subject] = user.client
        record = partial(self._record, request, intent, user)
        return await apply_and_record(key.ordinal, work, NOT_RECORDED, record)

    def _waiter(self, key: ClosureKey, client: str) -> Waiter:
        def applying() -> list[AwaitedClient]:
            return [
                AwaitedClient(self._applying.get(_subject(key), "another worker"), "same mutation")
            ]

        return Waiter(client, f"mutation {key.ordinal} of {label(key.identity)}", applying)

    def _record(
        self, request: Mutation, intent: Intent, user: SpaceUser, reply: RecordedReply | None
    ) -> None:
        key = request.key.closure
        subject = _subject(key)
        self._applying.pop(subject, None)
        self._ledger.finish(key, intent, reply, user)
        self._waits.changed(subject)


def _subject(key: ClosureKey) -> tuple[str, bytes]:
    return "closure", key.SerializeToString()
