"""Carrying out what is applied once, and keeping how it ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from stratagem_proto.errors import (
    CancelledError,
    DeadlineExceededError,
    MalformedStreamError,
    ResourceExhaustedError,
    StratagemError,
    UnavailableError,
)
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.wire.status import from_record, to_record
from stratagem_psserver.exactly_once.ledger import Outcome, Refused
from stratagem_psserver.limits.allocation import allocating

# A repetition may fare better, so a request that ends so is not settled. A stream
# that was cut can look like one that its client ended too early.
PASSING = (
    CancelledError,
    DeadlineExceededError,
    MalformedStreamError,
    ResourceExhaustedError,
    UnavailableError,
)

Work: TypeAlias = Callable[[], Awaitable[bytes]]
"""Applies a request and returns the serialised response."""


async def settled(
    number: int,
    work: Work,
    passing: tuple[type[StratagemError], ...],
    settle: Callable[[RecordedReply | None], None],
) -> bytes:
    """Does work, and has kept how it ended.

    Args:
        number: Under which the reply is kept.
        work: What to do.
        passing: Errors that are not kept, as a repetition may fare better.
        settle: Called with what is to be kept; with None for nothing.
    """
    reply: RecordedReply | None = None
    try:
        with allocating("use more servers, or smaller variables and requests"):
            response = await work()
        reply = RecordedReply(sequence=number, response=response)
        return response
    except passing:
        raise
    except Exception as error:
        reply = RecordedReply(sequence=number, status=to_record(error))
        raise
    finally:
        settle(reply)


def answer(known: Outcome) -> bytes:
    """Returns the response of a request that need not be applied.

    Raises:
        StratagemError: It was refused, or is.
    """
    if isinstance(known, Refused):
        raise known.error
    if known.reply.status.code:
        raise from_record(known.reply.status)
    return known.reply.response
