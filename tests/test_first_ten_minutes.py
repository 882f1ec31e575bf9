"""What the page for the first ten minutes shows, works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stratagem_deploy.processes.process import import_path
from tests.pages import ROOT, programs

pytestmark = pytest.mark.long

PAGE = ROOT / "docs" / "first-ten-minutes.md"
TEXT = PAGE.read_text(encoding="utf-8")
(PROGRAM,) = programs(PAGE)
COMMANDS = re.findall(r"^\$ ((?:python|stratagem run) .+)", TEXT, re.MULTILINE)
STARTERS = {"python": [], "stratagem": ["-m", "stratagem_deploy.cli"]}
MOST_SECONDS = 200


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_trains(command: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    starter, *arguments = shlex.split(command)
    finished = subprocess.run(
        [sys.executable, *STARTERS[starter], *arguments],
        cwd=tmp_path,
        env=os.environ | import_path(),
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
    )
    assert finished.returncode == 0, finished.stderr
    losses = [float(loss) for loss in re.findall(r"^step \d+: loss (\S+)", finished.stdout, re.M)]
    assert len(losses) == 4
    assert losses[-1] < 1e-2
    others = finished.stderr.count("worker:1 | step")
    assert others == (4 if "--workers 2" in command else 0)


def test_the_page_shows_how_to_start() -> None:
    assert [command.split()[0] for command in COMMANDS] == ["python", "stratagem", "stratagem"]
    assert PROGRAM.count("  # ") == 3  # the lines that are new to who knows PyTorch
