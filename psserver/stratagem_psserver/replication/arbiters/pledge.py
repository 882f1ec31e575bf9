"""What a replica owes to the chief that decides, and what chiefs have told it; without the wire."""

from __future__ import annotations

from itertools import count

from stratagem_proto.v1.arbitration_pb2 import Answer, Question, Report
from stratagem_proto.v1.replication_pb2 import Replica, View


class Pledge:
    """The part of one process in the decisions of chiefs, of which it believes one at a time.

    It lasts as long as the process, through all states that the process has.

    Attributes:
        chief: The chief whose answers count; empty before there was one.
        known: The last view that a chief has told of; None if none has.
    """

    def __init__(self) -> None:
        self.chief = b""
        self.known: View | None = None
        self._term = 0
        self._numbers = count(1)
        # What was asked for and may have been granted, by the number of the question.
        self._wanted: dict[int, View] = {}

    def take(self, chief: bytes) -> None:
        """Believe this chief from now on, and no other."""
        if chief != self.chief:
            self.chief, self._term = chief, 0

    def admit(self, term: int) -> None:
        """Note that the present chief counts on this process in its term."""
        self._term = term

    def ask(self, present: View | None = None, following: View | None = None) -> Question:
        """Return the next question; it has to be sent to the present chief."""
        question = Question(number=next(self._numbers), present=present, following=following)
        if following is not None:
            self._wanted[question.number] = following
        return question

    def hear(self, answer: Answer) -> None:
        """Learn from an answer of the present chief, whether or not anybody still waits for it."""
        if answer.replaced:
            self._learn(self._wanted.get(answer.number))
        elif answer.HasField("view"):
            self._learn(answer.view)
        self._wanted = {
            number: view for number, view in self._wanted.items() if number > answer.number
        }

    def _learn(self, view: View | None) -> None:
        if view is not None and (self.known is None or view.epoch > self.known.epoch):
            self.known = view

    def report(self, replica: Replica, inquiry: int = 0) -> Report:
        """Return what the chief has to know before it decides.

        Args:
            replica: The state that the process has at present.
            inquiry: The number of the inquiry that this answers; 0 for none.
        """
        wanted = self._wanted.values()
        return Report(
            inquiry=inquiry, replica=replica, known=self.known, wanted=wanted, term=self._term
        )
