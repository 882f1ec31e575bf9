"""Whoever kills a program that owns a cluster kills the cluster too."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.deploy.processes.process_tree import descendants, is_alive, python, tasks
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

PROGRAM = """
import sys, time
from pathlib import Path
from stratagem_deploy import LocalCluster

def work(resolver, at_work):
    Path(at_work).touch()
    time.sleep(1000)

with LocalCluster(ps=1, workers=1, processes=True) as cluster:
    cluster.run(work, sys.argv[1])
"""
SCRIPT = """
import sys, time
from pathlib import Path
Path(sys.argv[1]).touch()
time.sleep(1000)
"""


def files_in(temporary: Path) -> list[Path]:
    """What there is but for records of runs: whoever reads them removes the dead."""
    records = f"stratagem-{os.getuid()}"
    return [path for path in temporary.glob("stratagem-*") if path.name != records]


@pytest.mark.parametrize(
    ("program", "signum"),
    [
        ("LocalCluster", signal.SIGKILL),
        pytest.param("LocalCluster", signal.SIGINT, marks=pytest.mark.long),
        ("stratagem run", signal.SIGKILL),
    ],
)
def test_no_process_and_no_file_outlives_it(
    program: str, signum: signal.Signals, tmp_path: Path
) -> None:
    at_work, temporary, script = (tmp_path / n for n in ("at work", "tmp", "s.py"))
    temporary.mkdir()
    script.write_text(SCRIPT)
    if program == "LocalCluster":
        command = ["-c", PROGRAM, str(at_work)]
    else:
        run = ["-m", "stratagem_deploy.cli", "run", "--grace", "60"]
        command = [*run, str(script), str(at_work)]
    environment = {"TMPDIR": str(temporary)}
    with python(*command, environment=environment, output=subprocess.DEVNULL) as owner:
        eventually(at_work.exists)
        assert len(files_in(temporary)) == 1
        family = descendants(owner.pid)
        # A server, a worker, and who removes their files.
        assert len(tasks(owner.pid)) == 3
        os.kill(owner.pid, signum)
    eventually(lambda: not any(map(is_alive, family)))
    eventually(lambda: not files_in(temporary))
