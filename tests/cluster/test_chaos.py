"""The demo, while something fails every two seconds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.deploy.processes.process_tree import python

# Longer than any of its waits: what fails is told by the program, and not by this test.
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

MINUTES = 0.5


@pytest.mark.parametrize("servers", ["replicated", "movable"])
def test_a_training_is_right_although_something_fails_every_two_seconds(
    servers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--servers", servers, "--minutes", str(MINUTES), "--out", str(tmp_path))
    command = ("-m", "benchmarks", "chaos", *options)
    with python(*command, output=subprocess.PIPE) as process:
        told, _ = process.communicate()
    with capsys.disabled():
        print(f"\n{told}")
    assert process.returncode == 0, told
    assert (tmp_path / "chaos.png").exists()
