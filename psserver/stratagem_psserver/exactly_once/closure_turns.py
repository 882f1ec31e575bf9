"""What scheduled functions change: applied once, however often they run."""

from __future__ import annotations

from functools import partial

from stratagem_proto.errors import AbortedError, UnavailableError
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import ClosureKey
from stratagem_psserver.exactly_once.closures import ClosureLedger, label
from stratagem_psserver.exactly_once.intents import Intent, Mutation, intent_of
from stratagem_psserver.exactly_once.ledger import (
    Admission,
    Refused,
    Replay,
    WaitForEarlier,
)
from stratagem_psserver.exactly_once.recording import (
    PASSING,
    Response,
    Work,
    apply_and_record,
    recorded_response,
)
from stratagem_psserver.waiting.waits import Waits

# As long as one mutation may take.
_TURN_SECONDS = 20.0

# What a session lacks, another one may have.
_NOT_RECORDED = (*PASSING, AbortedError)


class ClosureTurns:
    """Lets one arrival of each mutation of a function be applied, of all sessions."""

    def __init__(self, ledger: ClosureLedger, waits: Waits) -> None:
        self._ledger, self._waits = ledger, waits

    async def once(self, request: Mutation, work: Work[Response]) -> Response:
        """Apply a mutation of a scheduled function, or repeat its reply."""
        key, intent = request.key.closure, intent_of(request)

        def admission() -> Admission | None:
            decided = self._ledger.admit(key, intent)
            return None if isinstance(decided, WaitForEarlier) else decided

        decided = admission() or await self._waits.until(
            _subject(key), admission, _TURN_SECONDS
        )
        if decided is None:
            raise UnavailableError(
                f"mutation {key.ordinal} of {label(key.identity)} is being applied for "
                "another worker; repeat it in a moment"
            )
        if isinstance(decided, (Replay, Refused)):
            return recorded_response(decided, work.response_type)
        record = partial(self._record, request, intent)
        return await apply_and_record(key.ordinal, work, _NOT_RECORDED, record)

    def _record(
        self, request: Mutation, intent: Intent, reply: RecordedReply | None
    ) -> None:
        key = request.key.closure
        self._ledger.finish(key, intent, reply)
        self._waits.changed(_subject(key))


def _subject(key: ClosureKey) -> tuple[str, bytes]:
    return "closure", key.SerializeToString()
