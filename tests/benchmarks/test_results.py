"""Figures, and what becomes of goals, in reports, tables and pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness.figures import Cell, Figure
from benchmarks.harness.goal import Goal
from benchmarks.harness.plots import plot
from benchmarks.harness.report import Report, join
from benchmarks.harness.table import Table, median_with_unit
from benchmarks.measurements.capacity import COST, FULL
from benchmarks.page import filled, tables
from benchmarks.profiles.names import Name

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
    (tmp_path / Name.STEP.file).write_text("## A step\n\nprofiled\n")
    for name, figures in {"transfer": FIGURES, "startup": [ready]}.items():
        Report(name, figures, [], about).write(tmp_path)
    Report("scheduling", [ready], [], about).write(tmp_path)
    steps = {COST + ", 1 worker": 1e-4, COST + ", 4 workers": 8e-5, FULL + ", 4 workers": 1e-4}
    costs = [Figure(Cell(what, "4,096 rows"), (cost, cost), "us") for what, cost in steps.items()]
    Report("capacity", costs, [], about).write(tmp_path)
    page = filled(Path("docs/performance.md").read_text(), tables(tmp_path))
    assert "| `startup`: server ready | at most 3 s | 1 | **2 s** |" in page
    assert "| 2 times Ray | 2 | **3.00**, not measured, not measured |" in page
    assert "The load was 1.5 to 1.5 before each" in page
    assert "| server ready, s | 2 (0.00) |" in page
    assert "| 4,096 rows | 100 | 80 | 12,500 | 10,000 |" in page
    assert "\nprofiled\n" in page
    with pytest.raises(ValueError, match="no place for flights"):
        filled(page, {"flights": ""})


@pytest.mark.full("pictures are looked at by who measures")
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


def test_a_figure_is_summed_up_by_median_and_relative_spread() -> None:
    figure = Figure(OURS, (1.0, 2.0, 3.0, 4.0, 10.0), "ms")
    assert figure.median == 3.0
    assert figure.spread == (7.0 - 1.5) / 3.0
    assert Figure(OURS, (0.0, 0.0), "ms").spread == 0
    assert median_with_unit(Figure(OURS, (1.2345, 1.2345), "ms")) == "1,230 ms"


def test_a_table_is_markdown() -> None:
    assert Table(["a", "b"], [["1", "2"]]).markdown() == ("| a | b |\n| --- | --- |\n| 1 | 2 |\n")
