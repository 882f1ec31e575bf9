"""Contestants that take turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from benchmarks.harness.contest import Contest, Question
from benchmarks.harness.figures import Cell, Figure
from benchmarks.harness.machine import Others
from benchmarks.harness.programs import Programs


@dataclass
class Outcome:
    """What became of a contest, or of several.

    Attributes:
        figures: What was answered, by where it stands.
        failed: Why contestants did not answer all they were asked, by their names.
        others: The most processors that others kept busy during one of them.
    """

    figures: dict[Cell, Figure] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    others: float = 0.0

    def add(self, other: Outcome) -> None:
        """Takes up another outcome, whose figures replace those of the same place."""
        self.figures |= other.figures
        self.failed |= other.failed
        self.others = max(self.others, other.others)


def hold(
    contest: Contest,
    programs: Programs,
    rounds: Callable[[Question], int],
    report: Callable[[str], None],
) -> Outcome:
    """Asks each question in turns, so that a change of the load meets all alike.

    Args:
        contest: Who answers what. Who fails takes part no more.
        programs: Those that run already, of which others are ended.
        rounds: Answers of each to a question after warming up.
        report: Told what is measured next.
    """
    report(f"{contest.name}: starting contestants")
    outcome = Outcome(failed={**programs.assemble(contest.taking_part)})
    others = Others()
    for question in contest.questions:
        report(f"{contest.name}: {question.name}")
        outcome.add(_answered(question, programs, rounds(question)))
    outcome.others = others.busy()
    return outcome


def _answered(question: Question, programs: Programs, rounds: int) -> Outcome:
    asking = {
        name: partial(program.measure, question.asked, question.seconds)
        for name, program in programs.by_name().items()
        if name in question.of
    }
    answers, failed = alternate(asking, rounds)
    for name in failed:
        programs.drop(name)
    cells = {Cell(question.name, name): found for name, found in answers.items()}
    figures = {cell: Figure(cell, found, question.unit) for cell, found in cells.items()}
    return Outcome(figures, {name: str(error) for name, error in failed.items()})


def alternate(
    contestants: Mapping[str, Callable[[], float]], rounds: int
) -> tuple[dict[str, tuple[float, ...]], dict[str, RuntimeError]]:
    """Runs each contestant once a round, after one round of warming up.

    Runs alternate so that a change of the machine's load meets all of them. Returns the figures of
    those that did not fail, and the errors of the others.

    Args:
        contestants: By name, what runs once and returns a figure.
        rounds: How many of their figures count.
    """
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    failed: dict[str, RuntimeError] = {}
    for _ in range(1 + rounds):
        for name in [name for name in contestants if name not in failed]:
            try:
                figures[name].append(contestants[name]())
            except RuntimeError as error:
                failed[name] = error
    complete = {name: tuple(found[1:]) for name, found in figures.items() if name not in failed}
    return complete, failed
