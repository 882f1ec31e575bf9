"""Contestants take turns, and answer what goals need of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.__main__ import Name, main
from benchmarks.goals import GOALS
from benchmarks.harness.contest import Contest, Contestant, Question
from benchmarks.harness.figures import Cell
from benchmarks.harness.goal import Goal
from benchmarks.harness.programs import Programs
from benchmarks.harness.turns import Outcome, alternate, hold
from benchmarks.measurements import MEASUREMENTS, transfer
from benchmarks.reached import REACHED
from benchmarks.run import Run


def test_a_contest_goes_on_without_who_fails() -> None:
    names = "whole", "absent", "wrong"
    modules = "limits.socket", "absent", "limits.socket"
    contestants = [*map(Contestant, names, modules, (["unix"], [], ["too", "many"]))]
    contest = Contest("c", contestants, [Question("q", "push 100", names, 0.0)])
    with Programs() as programs:
        outcome = hold(contest, programs, lambda _: 2, lambda _: None)
        lasting, again = programs.by_name(), replace(contest, name="d")
        hold(again.about(outcome.figures), programs, lambda _: 2, lambda _: None)
        assert programs.by_name() == lasting
    (figure,) = outcome.figures.values()
    assert figure.cell == Cell("q", "whole")
    assert len(figure.answers) == 2
    assert outcome.failed.keys() == {"absent", "wrong"}
    assert outcome.others >= 0
    assert "No module named" in outcome.failed["absent"]


def test_questions_have_contestants_and_goals_have_questions() -> None:
    cells: set[Cell] = set()
    for contest in (each for contests in MEASUREMENTS.values() for each in contests()):
        names = {each.name for each in contest.contestants}
        for question in contest.questions:
            assert set(question.of) <= names
            cells |= {Cell(question.name, name) for name in question.of}
    assert {cell for goal in GOALS for cell in goal.cells} <= cells


def test_what_fell_is_measured_once_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    socket = Contestant("socket", "limits.socket", ["unix"])
    questions = [Question(name, "push 100", {"socket"}, 0.01) for name in "abc"]
    goals = [
        Goal("m", Cell("a", "socket"), 1e-9, 1.0, "a", "in no time", kept=True),
        Goal("m", Cell("b", "socket"), 1e9, 1.0, "b", "in any time", kept=True),
        Goal("m", Cell("c", "socket"), 1e-9, 1.0, "c", "in no time"),
    ]
    asked: list[str] = []

    def holding(contest: Contest, *arguments: Any) -> Outcome:
        asked.extend(question.name for question in contest.questions)
        return hold(contest, *arguments)

    contest = Contest("m", [socket], questions)
    monkeypatch.setattr("benchmarks.run.MEASUREMENTS", {"m": lambda: [contest]})
    monkeypatch.setattr("benchmarks.run.GOALS", goals)
    monkeypatch.setattr("benchmarks.run.hold", holding)
    monkeypatch.setattr("benchmarks.run._QUICK_SECONDS", 0.0)
    quick = Run([], 7, quick=True, folder=tmp_path, console=Console(stderr=True))
    with Programs() as programs:
        report = quick.measure("m", programs)
    assert report is not None
    assert report.fallen == goals[:1]
    assert asked == ["a", "b", "a"]


def test_what_was_reached_is_a_goal() -> None:
    kept = {(goal.measurement, goal.name) for goal in GOALS if goal.kept}
    assert kept == {(name, goal) for name, reached in REACHED.items() for goal in reached}
    assert len({(goal.measurement, goal.name) for goal in GOALS}) == len(GOALS)


def test_a_contest_asks_only_for_the_figures_that_are_needed() -> None:
    contest = transfer.small_updates()
    cell = Cell("round trip, median", "Stratagem")
    (question,) = contest.about([cell]).questions
    assert (question.name, question.of) == (cell.question, {"Stratagem"})


def test_goals_without_a_floor_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.run.MEASUREMENTS", {"startup": list})
    main([Name("startup")], quick=True)
    lines = capsys.readouterr().out.splitlines()
    # It takes too long to be measured again in two minutes.
    assert "- scheduling, update, round trip with 1, 2, 4 workers: 2 times TensorFlow" in lines
    assert "- startup, server ready: at most 3 s" not in lines


def test_contestants_take_turns_and_the_first_round_does_not_count() -> None:
    turns: list[str] = []

    def turn(name: str) -> float:
        turns.append(name)
        return float(len(turns))

    answers, failed = alternate({name: partial(turn, name) for name in "ab"}, rounds=3)
    assert "".join(turns) == "abababab"
    assert answers["b"] == (4.0, 6.0, 8.0)
    assert not failed
