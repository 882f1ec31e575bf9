"""One run of the benchmarks: what is measured in it, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.goals import GOALS
from benchmarks.harness.contest import Contest, Question
from benchmarks.harness.environments import Foreign, versions
from benchmarks.harness.figures import Cell
from benchmarks.harness.goal import Goal
from benchmarks.harness.machine import load, machine
from benchmarks.harness.plots import plot
from benchmarks.harness.programs import Programs
from benchmarks.harness.report import Report, join
from benchmarks.harness.turns import Outcome, hold
from benchmarks.measurements import MEASUREMENTS

# A quick run has more rounds of short answers: they vary more.
_QUICK_SECONDS, _QUICK_ROUNDS = 1.2, 3


@dataclass(frozen=True)
class Run:
    """What is measured, and how.

    Attributes:
        peers: Whom to measure beside ourselves and the limits.
        rounds: Alternated answers of each; a quick run chooses them itself.
        quick: Whether only goals that were reached are measured.
        folder: Where figures are kept.
        console: Where it says what it does.
    """

    peers: Collection[Foreign]
    rounds: int
    quick: bool
    folder: Path
    console: Console

    def measure(self, name: str, programs: Programs) -> Report | None:
        """Measures one thing and keeps it; None if a quick run needs nothing of it."""
        goals = [goal for goal in GOALS if goal.measurement == name]
        contests = self._contests(name, goals)
        if not contests:
            return None
        about = machine() | versions(self.peers) | {"load before": load()}
        outcome = self._outcome(contests, programs)
        if self.quick:
            fallen = _report(name, outcome, goals, about).fallen
            # Once more, as others may have used the machine just then.
            outcome.add(self._outcome(_anew(fallen, contests), programs))
        report = _report(name, outcome, goals, about)
        self._keep(report)
        return report

    def _contests(self, name: str, goals: Sequence[Goal]) -> Sequence[Contest]:
        contests = [each.among(self.peers) for each in MEASUREMENTS[name]()]
        if not self.quick:
            return contests
        return _for([goal for goal in goals if goal.kept], contests)

    def _outcome(self, contests: Sequence[Contest], programs: Programs) -> Outcome:
        outcome = Outcome()
        with self._reporting() as report:
            for contest in contests:
                outcome.add(hold(contest, programs, self._rounds, report))
        for name, why in outcome.failed.items():
            self.console.print(f"{name} failed: {why}", markup=False)
        return outcome

    def _rounds(self, question: Question) -> int:
        if self.quick:
            return max(round(_QUICK_SECONDS / question.seconds), _QUICK_ROUNDS)
        return self.rounds

    @contextmanager
    def _reporting(self) -> Iterator[Callable[[str], None]]:
        """What shows on the terminal what is measured."""
        with self.console.status("starting") as status:
            yield lambda what: status.update(f"measuring {what}")

    def _keep(self, report: Report) -> None:
        report.write(self.folder)
        join(self.folder)
        if not self.quick:
            plot(report.name, report.figures, self.folder)


def _for(goals: Sequence[Goal], contests: Sequence[Contest]) -> Sequence[Contest]:
    """What goals need of contests."""
    return _about({cell for goal in goals for cell in goal.cells}, contests)


def _about(cells: Collection[Cell], contests: Sequence[Contest]) -> Sequence[Contest]:
    needed = [contest.about(cells) for contest in contests]
    return [contest for contest in needed if contest.questions]


def _anew(goals: Sequence[Goal], contests: Sequence[Contest]) -> Sequence[Contest]:
    """The same questions, to all: figures are compared with those of the same round."""
    asked = {cell.question for goal in goals for cell in goal.cells}
    cells = {
        Cell(question.name, name)
        for contest in contests
        for question in contest.questions
        for name in question.of
        if question.name in asked
    }
    return _about(cells, contests)


def _report(name: str, outcome: Outcome, goals: Sequence[Goal], about: dict[str, object]) -> Report:
    busy = {"load after": load(), "processors that others used": outcome.others}
    figures = [*outcome.figures.values()]
    return Report(name, figures, goals, about | busy, outcome.failed)
