"""What limits throughput is marked, and workers take the steps that a point is made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks.harness.namespace import missing
from benchmarks.scaling.__main__ import main
from benchmarks.scaling.curve import Point, drawn, table
from benchmarks.scaling.hosts import NEEDED

FREE = Point(
    workers=4, servers=2, rate=150.0, step=0.02, cores=0.5, server=0.2, link=0.0, nbytes=1e6
)
POINTS = [
    FREE,
    FREE._replace(servers=8, rate=200.0, cores=0.95),
    FREE._replace(workers=16, rate=500.0, server=0.97, link=0.93),
]


def test_a_point_says_what_was_full() -> None:
    assert [each.limits for each in POINTS] == [[], ["cores"], ["server", "link"]]


def test_a_table_has_rates_their_part_of_the_ideal_and_marks() -> None:
    shown = table(POINTS)
    assert [*shown.columns[1:]] == ["2 servers", "8 servers"]
    assert shown.rows == [
        ["4 workers", "150 (0.75)", "200 (1.00) †"],
        ["16 workers", "500 (0.62) ‡§", ""],
    ]


def test_a_picture_has_a_part_for_each_place_and_a_line_for_each_number_of_servers() -> None:
    picture = drawn({"loopback": POINTS, "links": POINTS[:2]})
    first, second = picture.axes
    assert [line.get_label() for line in first.lines][1:] == ["2 servers", "8 servers"]
    assert [line.get_label() for line in second.lines][1:] == ["2 servers", "8 servers"]


@pytest.mark.long
@pytest.mark.parametrize("load", ["small", "rows"])
def test_workers_of_this_host_take_steps(load: str, tmp_path: Path) -> None:
    measured("loopback", load, tmp_path)


@pytest.mark.netns
def test_workers_with_networks_of_their_own_take_steps(tmp_path: Path) -> None:
    if why := missing(NEEDED):
        pytest.skip(why)
    for point in measured("links", "rows", tmp_path):
        assert 0 < point.link < 2


def measured(place: str, load: str, folder: Path) -> list[Point]:
    """The points of 1 and 2 workers on 1 and 2 servers."""
    app = Typer()
    app.command()(main)
    counts = [f"--{job}={count}" for job in ("workers", "servers") for count in (1, 2)]
    options = [f"--place={place}", f"--load={load}", "--seconds=0.3", f"--out={folder}", *counts]
    ended = CliRunner().invoke(app, options, catch_exceptions=False)
    assert "| 2 workers |" in ended.stdout
    assert (folder / "scaling.svg").exists()
    found = json.loads((folder / "scaling.json").read_text())
    points = [Point(**each) for each in found["curves"][place]]
    assert [(each.workers, each.servers) for each in points] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    for point in points:
        assert 0 < point.rate < point.ideal
        assert point.nbytes > 0
    return points
