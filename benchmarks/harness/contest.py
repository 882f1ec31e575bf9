"""Questions that several contestants answer in turns, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from benchmarks.harness.environments import Foreign, python_of
from benchmarks.harness.turns import alternate
from benchmarks.peers.process import Peer, Program, peer


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
class Cell:
    """Where a figure stands.

    Attributes:
        question: Name of the question.
        contestant: Name of the contestant.
    """

    question: str
    contestant: str


@dataclass(frozen=True)
class Figure:
    """What one contestant answered to one question.

    Attributes:
        cell: The contestant and the question.
        median: Of its answers.
        spread: Interquartile range of the answers over their median.
        unit: What tables show the median in.
    """

    cell: Cell
    median: float
    spread: float
    unit: str


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

    def among(self, peers: Collection[Foreign]) -> Contest:
        """The same with ourselves, the limits, and these peers alone."""
        there = [
            each for each in self.contestants if each.peer is None or each.peer in peers
        ]
        return replace(self, contestants=there)

    def about(self, cells: Collection[Cell]) -> Contest:
        """The same with what is needed to know these figures."""
        questions = []
        for question in self.questions:
            of = {cell.contestant for cell in cells if cell.question == question.name}
            if of:
                questions.append(replace(question, of=of))
        return replace(self, questions=questions)


def hold(
    contest: Contest, rounds: int, report: Callable[[str], None]
) -> Iterator[Figure]:
    """Asks each question in turns, so that a change of the load meets all alike.

    Args:
        contest: Who answers what.
        rounds: Answers of each after warming up.
        report: Told what is measured next.
    """
    asked = {name for question in contest.questions for name in question.of}
    contestants = [each for each in contest.contestants if each.name in asked]
    if not contestants:
        return
    report(f"{contest.name}: starting contestants")
    with _started(contestants) as programs:
        for question in contest.questions:
            report(f"{contest.name}: {question.name}")
            yield from _answers(question, programs, rounds)


@contextmanager
def _started(contestants: Sequence[Contestant]) -> Iterator[dict[str, Peer]]:
    with ExitStack() as stack:
        yield {each.name: stack.enter_context(_running(each)) for each in contestants}


def _running(contestant: Contestant) -> AbstractContextManager[Peer]:
    return peer(
        Program(
            python_of(contestant.peer),
            f"benchmarks.peers.{contestant.module}",
            contestant.arguments,
            contestant.settings,
            contestant.restless,
        )
    )


def _answers(
    question: Question, programs: Mapping[str, Peer], rounds: int
) -> Iterator[Figure]:
    asking = {
        name: partial(program.measure, question.asked, question.seconds)
        for name, program in programs.items()
        if name in question.of
    }
    for name, sample in alternate(asking, rounds).items():
        cell = Cell(question.name, name)
        yield Figure(cell, sample.median, sample.spread, question.unit)
