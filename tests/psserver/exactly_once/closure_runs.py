"""Runs of scheduled functions that meet at one server, in any order of events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import strategies as st

from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import ClosureIdentity, ClosureKey
from stratagem_psserver.exactly_once.closures import ClosureLedger, EndedClosures
from stratagem_psserver.exactly_once.numbering import Apply, Intent, Refused, Replay, WaitForEarlier

SPACE = b"coordinator 1234"
MUTATIONS = 3


def key(number: int, ordinal: int, space: bytes = SPACE) -> ClosureKey:
    identity = ClosureIdentity(space=space, number=number)
    return ClosureKey(identity=identity, ordinal=ordinal)


def intent(what: str) -> Intent:
    return Intent(what, what.encode())


@dataclass
class Run:
    """One run of a function, on one worker.

    Attributes:
        number: The function.
        sent: How many of its mutations were answered.
        applying: Whether the server is at its next one.
        refused: Whether the server takes no more of it.
    """

    number: int
    sent: int = 0
    applying: bool = False
    refused: bool = False

    @property
    def over(self) -> bool:
        return self.sent == MUTATIONS or self.refused


@dataclass
class Runs:
    """Several functions, each of which runs more than once at the same time.

    Attributes:
        applied: How often each mutation was applied, by function and ordinal.
        ended: Functions of which the server was told that they have ended.
    """

    data: st.DataObject
    ledger: ClosureLedger = field(default_factory=ClosureLedger)
    runs: list[Run] = field(
        default_factory=lambda: [Run(number) for number in (1, 2, 3) for _ in range(3)]
    )
    applied: Counter[tuple[int, int]] = field(default_factory=Counter)
    ended: set[int] = field(default_factory=set)

    def happen(self, events: int) -> None:
        """Lets runs send, servers answer or fail, and functions end, in any order."""
        for _ in range(events):
            run = self.data.draw(st.sampled_from(self.runs))
            if run.applying:
                self._settle(run, self.data.draw(st.booleans()))
            elif not run.over:
                self._send(run)
            elif run.sent == MUTATIONS and self.data.draw(st.booleans()):
                self.end(run.number)

    def finish(self) -> None:
        """Lets everything come to its end, without failures."""
        while any(not run.over for run in self.runs):
            for run in self.runs:
                if run.applying:
                    self._settle(run, True)
                elif not run.over:
                    self._send(run)

    def end(self, number: int) -> None:
        """Tells the server that a function has ended, as coordinators do."""
        self.ended.add(number)
        through = max(self.ended)
        unended = frozenset(range(1, through + 1)) - self.ended
        self.ledger.end(SPACE, EndedClosures(through, unended))

    def _send(self, run: Run) -> None:
        ordinal = run.sent + 1
        admission = self.ledger.admit(key(run.number, ordinal), intent("the same"))
        if isinstance(admission, Refused):
            assert run.number in self.ended
            run.refused = True
        elif isinstance(admission, Replay):
            assert admission.reply.response == self._reply(run.number, ordinal)
            run.sent += 1
        elif isinstance(admission, Apply):
            run.applying = True
        else:
            assert isinstance(admission, WaitForEarlier)

    def _settle(self, run: Run, succeeds: bool) -> None:
        ordinal, reply = run.sent + 1, None
        if succeeds:
            self.applied[run.number, ordinal] += 1
            response = self._reply(run.number, ordinal)
            reply = RecordedReply(sequence=ordinal, response=response)
            run.sent += 1
        self.ledger.finish(key(run.number, ordinal), intent("the same"), reply)
        run.applying = False

    def _reply(self, number: int, ordinal: int) -> bytes:
        return b"%d of %d, applied" % (ordinal, number)
