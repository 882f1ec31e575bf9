"""The benchmarks measure what they say; how fast it is, no test says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks.harness.processor_time import processor_seconds
from benchmarks.harness.report import Report
from benchmarks.harness.turns import Sample, alternate, timed
from benchmarks.measurements import scheduling, steps, transfer


def test_both_directions_are_measured_beside_the_limits() -> None:
    reported: list[str] = []
    rows = transfer.measure([4_000, 2_000_000], rounds=3, report=reported.append)
    assert reported == ["0.004 MB", "2 MB"]
    measured = [(row.direction, row.nbytes) for row in rows]
    assert measured == [
        ("push + SGD", 4_000),
        ("pull", 4_000),
        ("push + SGD", 2_000_000),
        ("pull", 2_000_000),
    ]
    for row in rows:
        assert row.of_memcpy > 0
        assert row.of_socket > 0


@pytest.mark.cluster
def test_steps_are_measured_beside_steps_without() -> None:
    small = steps.Model(layers=2, width=4, batch=2)
    reported: list[str] = []
    comparisons = [replace(one, model=small) for one in steps.COMPARISONS[:2]]
    rows = steps.measure(comparisons, rounds=3, report=reported.append)
    assert [row.what for row in rows] == ["overlap=True", "clip_norm=1, sync"]
    assert reported[0] == "overlap=True, 2 layers of 4, batch of 2"
    for row in rows:
        assert row.milliseconds > 0
        assert row.ratio > 0


@pytest.mark.cluster
def test_closures_are_measured_on_real_workers(tmp_path: Path) -> None:
    extent = scheduling.Extent(workers=[2], rounds=3, seconds=0.05)
    reported: list[str] = []
    pythons = {scheduling.OURS: Path(sys.executable)}
    rows = scheduling.measure(extent, pythons, reported.append)
    assert reported == ["2 workers"]
    assert [row.closure for row in rows] == ["nothing", "update"]
    for row in rows:
        assert row.rate > 0
        assert 0 < row.trip < 10
        assert (row.rate_ratio, row.trip_ratio, row.cost_ratio) == (1, 1, 1)


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


def test_a_peer_that_cannot_start_says_why() -> None:
    pythons = {scheduling.OURS: Path("/bin/false")}
    with pytest.raises(RuntimeError, match="does not answer"):
        scheduling.measure(scheduling.Extent([1]), pythons, lambda _: None)


def test_a_report_keeps_the_figures_and_their_table(tmp_path: Path) -> None:
    rows = [transfer.Row("pull", 1_000_000, 1.0, 0.5, 0.25, 0.125)]
    text = Report("transfer", 3, rows, transfer.table(rows)).write(tmp_path)
    assert "| pull | 1 | 1.00 | 0.50 | 0.25 | 0.12 |" in text.splitlines()
    assert (tmp_path / "transfer.md").read_text() == text
    record = json.loads((tmp_path / "transfer.json").read_text())
    assert record["rounds"] == 3
    assert record["rows"][0]["of_socket"] == 0.25


def test_contestants_take_turns_and_the_first_round_does_not_count() -> None:
    turns: list[str] = []
    samples = alternate(
        {name: timed(partial(turns.append, name)) for name in "ab"}, rounds=3
    )
    assert "".join(turns) == "abababab"
    assert [len(sample.figures) for sample in samples.values()] == [3, 3]


def test_a_sample_is_summed_up_by_median_and_relative_spread() -> None:
    sample = Sample((1.0, 2.0, 3.0, 4.0, 10.0))
    assert sample.median == 3.0
    assert sample.spread == (7.0 - 1.5) / 3.0
