"""The register that a chief keeps for one task: events come in, messages go out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stratagem._ps_client.arbitration.recovery import latest, obstacle
from stratagem_proto.v1.arbitration_pb2 import (
    Admission,
    Answer,
    ArbitrateRequest,
    Delay,
    Inquiry,
    Question,
    Report,
)
from stratagem_proto.v1.replication_pb2 import View


class Outgoing(NamedTuple):
    """A message for a replica."""

    address: str
    message: ArbitrateRequest


@dataclass
class _Member:
    """A replica that has taken the call of this chief.

    Attributes:
        report: What it has said last.
        joined: The number of the inquiry that was sent when it came.
        is_admitted: Whether it keeps the chief in office.
        question: The last one that is not answered; None if there is none.
    """

    report: Report
    joined: int
    is_admitted: bool
    question: Question | None = None


class ViewRegister:
    """Keeps the view of a task, as long as no other chief can have come into office.

    Another one needs all replicas, so this one is in office while one that it has admitted takes
    answers from nobody else. A replica is admitted once another one, which is, has said so
    *afterwards*; or all of them at once, after all have said at the same time that they are with
    this chief, and nothing can be missing of what they know. That begins another term.

    Args:
        replicas: The addresses of all replicas of the task.

    Attributes:
        view: The present view; None before there was one, or before the first term.
        term: The number of the term; 0 before the first.
    """

    def __init__(self, replicas: Sequence[str]) -> None:
        self.view: View | None = None
        self.term = 0
        self._replicas = replicas
        self._members: dict[str, _Member] = {}
        self._inquiry = 0

    def joined(self, address: str, report: Report) -> list[Outgoing]:
        """Take a replica in whose call begins with a report; a former call of it has ended."""
        self._inquiry += 1
        stayed = report.term != 0 and report.term == self.term
        self._members[address] = _Member(report, self._inquiry, stayed)
        inquiry = ArbitrateRequest(inquiry=Inquiry(number=self._inquiry))
        return [Outgoing(each, inquiry) for each in self._members] + self._settle()

    def left(self, address: str) -> list[Outgoing]:
        """Note that the call of a replica has ended."""
        self._members.pop(address, None)
        return self._settle()

    def reported(self, address: str, report: Report) -> list[Outgoing]:
        """Note the answer to an inquiry."""
        if address in self._members:
            self._members[address].report = report
        return self._settle()

    def asked(self, address: str, question: Question) -> list[Outgoing]:
        """Answer a question, now or once it is known that this chief decides."""
        member = self._members.get(address)
        if member is None:
            return []
        member.question = question
        if member.is_admitted:
            return [self._answered(address, member)]
        delay = Delay(reason=self.delay())
        return [Outgoing(address, ArbitrateRequest(delay=delay))]

    def delay(self) -> str:
        """Return what this chief waits for before it decides; "" if it decides."""
        for address in self._replicas:
            if address not in self._members:
                return f"it does not reach the replica at {address}; start it, or see why"
        for address, member in self._members.items():
            if member.report.inquiry < self._inquiry:
                return f"it waits for the replica at {address}; see that it is not suspended"
        return self.obstacle

    @property
    def obstacle(self) -> str:
        """Why it can never decide about what all replicas have told it; "" if it may."""
        is_complete = len(self._members) == len(self._replicas)
        return obstacle(self._reports) if is_complete and not self._is_in_office else ""

    @property
    def _is_in_office(self) -> bool:
        return any(member.is_admitted for member in self._members.values())

    @property
    def _reports(self) -> list[Report]:
        return [member.report for member in self._members.values()]

    def _settle(self) -> list[Outgoing]:
        """Admit whoever can be admitted now."""
        if not self._is_in_office:
            if self.delay():
                return []
            # If no process knows of any view, all begin without state, and epochs go on from here.
            self.view, self.term = latest(self._reports) or self.view, self.term + 1
            return [*self._admitted(self._members)]
        return [*self._admitted(self._vouched_for())]

    def _vouched_for(self) -> list[str]:
        """Return the replicas with which one that is admitted was since they have come."""
        heard = [m.report.inquiry for m in self._members.values() if m.is_admitted]
        return [address for address, m in self._members.items() if m.joined <= max(heard)]

    def _admitted(self, addresses: Sequence[str] | dict[str, _Member]) -> Iterator[Outgoing]:
        for address in [*addresses]:
            member = self._members[address]
            if not member.is_admitted:
                member.is_admitted = True
                admission = Admission(term=self.term)
                yield Outgoing(address, ArbitrateRequest(admission=admission))
                if member.question is not None:
                    yield self._answered(address, member)

    def _answered(self, address: str, member: _Member) -> Outgoing:
        question, member.question = member.question, None
        assert question is not None
        answer = Answer(number=question.number)
        if question.HasField("following"):
            answer.replaced = self._replace(question)
        elif self.view is not None:
            answer.view.CopyFrom(self.view)
        return Outgoing(address, ArbitrateRequest(answer=answer))

    def _replace(self, question: Question) -> bool:
        present = question.present if question.HasField("present") else None
        epoch = self.view.epoch if self.view is not None else 0
        if present != self.view or question.following.epoch != epoch + 1:
            return False
        self.view = question.following
        return True
