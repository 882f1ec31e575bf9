"""The benchmarks measure what they say; how fast it is, no test says."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from benchmarks.__main__ import Name, main
from benchmarks.goals import GOALS
from benchmarks.harness.contest import Contest, Contestant, Question
from benchmarks.harness.environments import Foreign, missing, python_of
from benchmarks.harness.figures import Cell, Figure
from benchmarks.harness.goal import Goal
from benchmarks.harness.plots import plot
from benchmarks.harness.programs import Programs
from benchmarks.harness.report import Report, join
from benchmarks.harness.table import Table
from benchmarks.harness.turns import Outcome, alternate, hold
from benchmarks.measurements import (
    MEASUREMENTS,
    lookups,
    movielens,
    resnet,
    scheduling,
    sessions,
    startup,
    steps,
    transfer,
    workers,
)
from benchmarks.page import filled, tables
from benchmarks.peers.process import Peer, Program
from benchmarks.peers.processor_time import processor_seconds
from benchmarks.reached import REACHED
from benchmarks.run import Run
from benchmarks.step_profile import PROFILE
from stratagem_deploy import LocalCluster
from tests.waiting import eventually

ALL = tuple(Foreign)
SMALL = steps.Model(layers=1, width=4, batch=2)


def in_threads(**settings: Any) -> LocalCluster:
    """A cluster that starts at once."""
    return LocalCluster(**{**settings, "processes": False})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clusters without processes, while contestants are in this process too."""
    for module in ("server", "training", "coordinator", "workers", "startup"):
        cluster = f"benchmarks.peers.stratagem.{module}.LocalCluster"
        monkeypatch.setattr(cluster, in_threads)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "contest",
    [
        transfer.transfer([4_000]),
        resnet.resnet(tensors=3),
        lookups.lookups(),
        movielens.movielens(),
        workers.workers([1]),
        steps.steps([replace(steps.COMPARISONS[1], model=SMALL)])[0],
        scheduling.scheduling([2])[0],
        # These start processes of their own.
        pytest.param(startup.startup(), marks=pytest.mark.cluster),
        pytest.param(sessions.sessions(count=3), marks=pytest.mark.cluster),
    ],
    ids=lambda contest: contest.name,
)
def test_we_and_the_limits_answer_all_questions(contest: Contest) -> None:
    for contestant in contest.among([]).contestants:
        program = import_module(f"benchmarks.peers.{contestant.module}")
        with program.contestant(*contestant.arguments) as answer:
            for question in contest.questions:
                if contestant.name in question.of:
                    assert answer(question.asked, 0.01) >= 0


@pytest.mark.cluster
def test_a_step_is_profiled_by_parts(tmp_path: Path) -> None:
    # In a process where torch has compiled something, the profiler goes round for ever.
    printed = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.step_profile"),
            *("--steps", "2", "--out", str(tmp_path)),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert printed.returncode == 0, printed.stderr
    parts = re.findall(r"^\| [a-zA-Z ]+ \| \d+ \| (\d+)% \|$", printed.stdout, re.M)
    assert 90 <= sum(map(int, parts)) <= 110
    assert (tmp_path / "report.md").read_text() == printed.stdout.removesuffix("\n")


@pytest.mark.cluster
@pytest.mark.parametrize("foreign", ALL)
def test_peers_answer_in_environments_of_their_own(foreign: Foreign) -> None:
    if why := missing(foreign):
        pytest.skip(why)
    contest = transfer.transfer([4_000], seconds=0.0)
    theirs = [each for each in contest.contestants if each.peer is foreign]
    alone = replace(contest, contestants=theirs)
    with Programs() as programs:
        outcome = hold(alone, programs, lambda _: 2, lambda _: None)
    assert outcome.failed == {}
    assert {cell.contestant for cell in outcome.figures} == {theirs[0].name}


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


def test_what_fell_is_measured_once_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    assert kept == {
        (name, goal) for name, reached in REACHED.items() for goal in reached
    }
    assert len({(goal.measurement, goal.name) for goal in GOALS}) == len(GOALS)


def test_a_contest_asks_only_for_the_figures_that_are_needed() -> None:
    contest = transfer.small_updates()
    cell = Cell("round trip, median", "Stratagem")
    (question,) = contest.about([cell]).questions
    assert (question.name, question.of) == (cell.question, {"Stratagem"})


def test_a_restless_program_is_stopped_between_its_turns() -> None:
    socket = "benchmarks.peers.limits.socket"
    restless = Program(Path(sys.executable), socket, ["unix"], restless=True)
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = set(children.read_text().split())
    with Peer(restless) as program:
        program.wait_until_ready()
        (child,) = set(children.read_text().split()) - before
        status = Path(f"/proc/{child}/status")
        eventually(lambda: "T (stopped)" in status.read_text())
        assert program.measure("push 100", 0.0) > 0
        eventually(lambda: "T (stopped)" in status.read_text())
    assert not status.exists()


def test_a_program_that_cannot_start_says_why() -> None:
    absent = Program(Path(sys.executable), "benchmarks.peers.absent")
    failing = pytest.raises(RuntimeError, match=r"does not answer.*\n.*No module named")
    with Peer(absent) as program, failing:
        program.wait_until_ready()


def test_what_a_child_does_is_processor_time_of_its_parent() -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint(); input()"
    before = processor_seconds(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert processor_seconds(os.getpid()) - before >= 0.2
        assert processor_seconds(child.pid) >= 0.2
        child.communicate(b"\n")


OURS, THEIRS = Cell("pull 1 MB", "Stratagem"), Cell("pull 1 MB", "Ray")
FIGURES = [
    Figure(OURS, (0.001, 0.001, 0.002), "ms"),
    Figure(THEIRS, (0.003, 0.003, 0.004), "ms"),
]
GOAL = Goal("transfer", OURS, THEIRS, 2.0, "pull: 1 MB", "2 times Ray")


def test_a_report_keeps_figures_ratios_and_tables(tmp_path: Path) -> None:
    report = Report("transfer", FIGURES, [GOAL], {"cores": 2}, {"MXNet": "why"})
    report.write(tmp_path)
    (tmp_path / "steps.md").write_text("of another run\n")
    join(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "| pull 1 MB, ms | 1 (1.00) | 3 (0.33) |" in text.splitlines()
    assert "Medians (and spreads) of 3 alternated runs; cores 2." in text
    assert "Failed: MXNet." in text.splitlines()
    assert "| Stratagem, pull 1 MB: of Ray | 3.00 | 2.00 | reached |" in text
    assert "of another run" in text
    assert Report.read(tmp_path, "transfer", [GOAL]) == report


def test_the_page_has_a_place_for_each_table_of_results(tmp_path: Path) -> None:
    rounds = {"load before": 1.5, "processors that others used": 0.1}
    about = {"cores": 2, "processor": "p", "python": "3", "torch": "2"} | rounds
    ready = Figure(Cell("server ready", "Stratagem"), (2.0, 2.0, 2.0), "s")
    (tmp_path / PROFILE).write_text("## A step\n\nprofiled\n")
    for name, figures in {"transfer": FIGURES, "startup": [ready]}.items():
        Report(name, figures, [], about).write(tmp_path)
    Report("scheduling", [ready], [], about).write(tmp_path)
    page = filled(Path("docs/performance.md").read_text(), tables(tmp_path))
    assert "| `startup`: server ready | at most 3 s | 1 | **2 s** |" in page
    assert "| 2 times Ray | 2 | **3.00**, not measured, not measured |" in page
    assert "The load was 1.5 to 1.5 before each" in page
    assert "| server ready, s | 2 (0.00) |" in page
    assert "\nprofiled\n" in page
    with pytest.raises(ValueError, match="no place for flights"):
        filled(page, {"flights": ""})


def test_throughput_and_cost_are_drawn(tmp_path: Path) -> None:
    cost = Figure(Cell("processors", "2 workers"), (9e-6, 9e-6), "us")
    plot("transfer", FIGURES, tmp_path)
    plot("workers", [cost], tmp_path)
    plot("startup", FIGURES, tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {"transfer.png", "workers.png"}


def test_a_ratio_is_the_median_of_those_of_rounds() -> None:
    assert GOAL.ratio(FIGURES) == pytest.approx(3)
    assert replace(GOAL, theirs=0.002).ratio(FIGURES) == 2
    assert GOAL.ratio(FIGURES[:1]) is None
    crossed = [Figure(OURS, (1, 2, 3), "ms"), Figure(THEIRS, (4, 2, 6), "ms")]
    assert GOAL.ratio(crossed) == 2
    assert GOAL.ratio([replace(crossed[0], answers=(0.0,)), crossed[1]]) == math.inf


@pytest.mark.parametrize(
    ("kept", "least", "figures", "count"),
    [
        (True, 2.9, FIGURES, 0),
        (True, 3.1, FIGURES, 1),
        (True, 2.9, FIGURES[:1], 1),
        (False, 3.1, FIGURES, 0),
    ],
)
def test_what_is_below_its_floor_or_not_measured_has_fallen(
    kept: bool, least: float, figures: Sequence[Figure], count: int
) -> None:
    goal = replace(GOAL, kept=kept, at_least=least)
    assert Report("transfer", figures, [goal], {}).fallen == [goal] * count


def test_goals_that_were_not_reached_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main([Name("startup")], quick=True)
    assert (
        "- startup, server ready: at most 3 s" in capsys.readouterr().out.splitlines()
    )


def test_a_peer_without_its_environment_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_PYTHON", "/nowhere/python")
    assert missing(Foreign.RAY) == "there is no /nowhere/python; run `make peers`"
    assert missing(Foreign.TORCH_RPC) == ""
    assert python_of(None) == Path(sys.executable)


def test_contestants_take_turns_and_the_first_round_does_not_count() -> None:
    turns: list[str] = []

    def turn(name: str) -> float:
        turns.append(name)
        return float(len(turns))

    answers, failed = alternate({name: partial(turn, name) for name in "ab"}, rounds=3)
    assert "".join(turns) == "abababab"
    assert answers["b"] == (4.0, 6.0, 8.0)
    assert not failed


def test_a_figure_is_summed_up_by_median_and_relative_spread() -> None:
    figure = Figure(OURS, (1.0, 2.0, 3.0, 4.0, 10.0), "ms")
    assert figure.median == 3.0
    assert figure.spread == (7.0 - 1.5) / 3.0
    assert Figure(OURS, (0.0, 0.0), "ms").spread == 0


def test_a_table_is_markdown() -> None:
    assert Table(["a", "b"], [["1", "2"]]).markdown() == (
        "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    )
