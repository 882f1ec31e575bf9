"""The time that an arbiter takes is measured of calls that it answers."""

from __future__ import annotations

from pathlib import Path

from typer import Typer
from typer.testing import CliRunner

from benchmarks.arbiters.__main__ import main


def test_each_arbiter_has_a_row_of_figures(tmp_path: Path) -> None:
    app = Typer()
    app.command()(main)
    names = [f"file:{tmp_path / name}" for name in ("one", "two")]
    ended = CliRunner().invoke(app, [*names, "--count", "3"], catch_exceptions=False)
    rows = [line.split(" | ") for line in ended.stdout.strip().splitlines()[2:]]
    assert [row[0].removeprefix("| ") for row in rows] == names
    for _, read, _, replace, *_ in rows:
        assert 0 <= float(read) < 1000
        assert 0 < float(replace) < 1000
