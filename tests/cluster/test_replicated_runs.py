"""`stratagem run --replicas 2`: replicas that are killed, seen from a shell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_found_runs import COMMAND, told
from tests.deploy.processes.process_tree import command, python, tasks
from tests.waiting import eventually

# Starting a process takes long on a busy machine.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

PATIENCE = 300.0

SCRIPT = """
import torch
from pathlib import Path
from stratagem import ParameterServerStrategy, Variable
folder = Path(__file__).parent
with ParameterServerStrategy() as strategy:
    with strategy.scope():
        counter = Variable(torch.tensor(0), False)
    counted = 0
    while not (folder / "enough").exists():
        counter.assign_add(1)
        counted += 1
        (folder / "counting").touch()
    print("lost", counted - int(counter.numpy()))
"""


class Run:
    """A run of the script, and the lines that it has written."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self._folder, self.process = folder, process
        eventually((folder / "counting").exists, PATIENCE)

    def status(self) -> list[dict[str, Any]]:
        """What all servers say."""
        _, output, _ = told(self._folder, "status", "--json", "--timeout", "30")
        found: list[dict[str, Any]] = json.loads(output)["servers"]
        return found

    def servers(self) -> list[str]:
        """What answers, by its name."""
        return [server["server"] for server in self.status() if server["answers"]]

    def has_backup(self) -> bool:
        names = {
            server["server"]
            for server in self.status()
            if "backup" in server.get("parameter_server", {}).get("replication", {}).get("view", {})
        }
        return "ps:0" in names

    def kill(self, name: str) -> None:
        (process,) = [server["pid"] for server in self.status() if server["server"] == name]
        os.kill(process, signal.SIGKILL)

    def kill_all(self) -> None:
        for process in tasks(self.process.pid):
            if "stratagem_psserver" in command(process):
                os.kill(process, signal.SIGKILL)

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        """Lets the script end; returns the exit code and the lines."""
        (self._folder / "enough").touch()
        output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, [json.loads(line) for line in output.splitlines()]


@contextmanager
def running(folder: Path) -> Iterator[Run]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [*COMMAND, "run", "--json", "--replicas", "2", str(script)]
    environment = {"TMPDIR": str(folder)}
    with python(*command, environment=environment, output=subprocess.PIPE) as process:
        yield Run(folder, process)


def test_a_replica_that_is_killed_comes_back_and_nothing_is_lost(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        (backup,) = [name for name in run.servers() if name != "ps:0"]
        run.kill("ps:0")
        eventually(run.has_backup, PATIENCE)
        code, lines = run.end()
    assert code == 0
    (rejoining,) = [line for line in lines if line.get("rejoins")]
    assert {rejoining["task"], backup} == {"ps:0 replica 0", "ps:0 replica 1"}
    assert rejoining["ended"] == "signal SIGKILL"
    assert "lost 0" in [line.get("line") for line in lines]


@pytest.mark.long
def test_a_run_ends_when_both_replicas_have_ended(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.kill_all()
        code, lines = run.end()
    assert code == 1
    assert lines[-1]["failed"].startswith("ps:0 replica ")


def test_replicas_that_cannot_be_are_refused() -> None:
    nothing = Path(os.devnull).parent
    code, _, errors = told(nothing, "run", "--ps", "0", "--replicas", "2", __file__)
    assert code == 2
    assert "has no use for 2 replicas" in errors
