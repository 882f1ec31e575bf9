"""Questions that several contestants answer in turns, each in a process of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.harness.environments import Foreign
from benchmarks.harness.figures import Cell


@dataclass(frozen=True)
class Contestant:
    """A program that answers questions; see `benchmarks.peers.process.serve`.

    Attributes:
        name: What tables call it.
        module: The program, in `benchmarks.peers`.
        arguments: What it is started with.
        peer: Whose environment it needs; None for ours.
        settings: Environment variables that it and its servers have besides.
        restless: Whether it uses processors between its turns, if it is let.
    """

    name: str
    module: str
    arguments: Sequence[str] = ()
    peer: Foreign | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    restless: bool = False


@dataclass(frozen=True)
class Question:
    """What contestants answer by a figure, of which less is better.

    Attributes:
        name: What tables call it.
        asked: What contestants are asked.
        of: Names of the contestants.
        seconds: About how long an answer takes; they may need longer.
        unit: What tables show answers in, which are in seconds or bytes.
    """

    name: str
    asked: str
    of: Collection[str]
    seconds: float = 0.1
    unit: str = "ms"


@dataclass(frozen=True)
class Contest:
    """Who answers what.

    Attributes:
        name: Of the measurement.
        contestants: All that could take part.
        questions: What those are asked that do, one after the other.
    """

    name: str
    contestants: Sequence[Contestant]
    questions: Sequence[Question]

    @property
    def taking_part(self) -> Sequence[Contestant]:
        """Those who are asked something."""
        asked = {name for question in self.questions for name in question.of}
        return [each for each in self.contestants if each.name in asked]

    def among(self, peers: Collection[Foreign]) -> Contest:
        """The same with ourselves, the limits, and these peers alone."""
        there = [each for each in self.contestants if each.peer is None or each.peer in peers]
        return replace(self, contestants=there)

    def about(self, cells: Collection[Cell]) -> Contest:
        """The same with what is needed to know these figures."""
        questions = []
        for question in self.questions:
            of = {cell.contestant for cell in cells if cell.question == question.name}
            if of:
                questions.append(replace(question, of=of))
        return replace(self, questions=questions)
