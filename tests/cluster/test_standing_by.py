"""Programs that coordinate, of which one stands by for the other."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.harness import coordinators
from benchmarks.successions import program
from benchmarks.successions.program import BATCH, END, RESULT, ROWS
from stratagem_deploy import LocalCluster
from stratagem_deploy.processes.process import Process
from tests.deploy.processes.process_tree import descendants, python
from tests.waiting import eventually

# Starting a process takes long on a busy machine.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


class Pair:
    """Two copies of a program that counts rows, of which the first one coordinates."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.folder = folder
        self.beats = program.beats(folder)
        self.first = self._started(cluster)
        eventually(lambda: self.done_by(self.first) > 0)
        self.second = self._started(cluster)
        seen = self.done_by(self.first)
        eventually(lambda: self.done_by(self.first) > seen + 100)  # the second one has asked

    def _started(self, cluster: LocalCluster) -> Process:
        resolver = cluster.cluster_resolver
        started = coordinators.started(program.__name__, self.folder, resolver)
        eventually((self.folder / f"standing-{started.pid}").exists)
        return started

    def done_by(self, process: Process) -> int:
        """How many functions have ended that a process has scheduled."""
        text = self.beats.read_text() if self.beats.exists() else ""
        return text.count(f"{process.pid} ")

    def finish(self) -> None:
        """Lets the pass under way be the last one, and checks what was counted."""
        (self.folder / END).touch()
        eventually((self.folder / RESULT).exists, 400.0)
        passes, least, most, functions = map(int, (self.folder / RESULT).read_text().split())
        assert (least, most) == (passes, passes)
        assert functions == passes * ROWS // BATCH


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(ps=2, worker_servers=2, processes=True))
        made = Pair(cluster, tmp_path)
        for process in made.first, made.second:
            stack.callback(process.send, signal.SIGKILL)
        yield made


def test_the_other_program_takes_over_and_counts_nothing_twice(pair: Pair) -> None:
    assert not pair.done_by(pair.second)
    pair.first.send(signal.SIGKILL)
    eventually(lambda: pair.done_by(pair.second) > 20)
    pair.finish()
    assert pair.second.wait(60)
    assert pair.second.exit_code == 0, pair.second.tail()


def test_a_program_that_was_suspended_changes_nothing_and_ends_by_name(pair: Pair) -> None:
    os.kill(pair.first.pid, signal.SIGSTOP)
    eventually(lambda: pair.done_by(pair.second) > 20)
    os.kill(pair.first.pid, signal.SIGCONT)
    assert pair.first.wait(60)
    assert pair.first.exit_code == 1
    assert "SupersededError" in pair.first.tail()
    assert f"process {pair.second.pid} of" in pair.first.tail()
    pair.finish()


def test_a_program_that_stands_by_ends_when_the_work_is_done(pair: Pair) -> None:
    pair.finish()
    assert pair.first.wait(60)
    assert pair.first.exit_code == 0, pair.first.tail()
    assert pair.second.wait(60)
    assert "CancelledError" in pair.second.tail()
    assert "has come to its end while this program stood by" in pair.second.tail()
    assert not pair.done_by(pair.second)


SCRIPT = """
import json, os, signal, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset
from stratagem import IndexedSlices, ParameterServerStrategy, Variable
from stratagem.coordinator import ClusterCoordinator

folder = Path(__file__).parent

def count(batches, rows):
    (ids,) = next(batches)
    rows.scatter_add(IndexedSlices(torch.ones_like(ids), ids))

with ParameterServerStrategy() as strategy:
    with strategy.scope():
        rows = Variable(torch.zeros(60, dtype=torch.int64), False, name="rows")
    coordinator = ClusterCoordinator(strategy)
    loader = DataLoader(TensorDataset(torch.arange(60)), 3, shuffle=True)
    data = coordinator.create_per_worker_dataset(loader, True, "rows")
    while (batches := iter(data)).pass_number < 3:
        left = range(batches.remaining)
        values = [coordinator.schedule(count, args=(batches, rows)) for _ in left]
        values[len(values) // 2].fetch()
        with (folder / "begun").open("a") as file:
            file.write(f"{os.getpid()} {batches.pass_number}\\n")
        if not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        coordinator.join()
    print(sorted(set(rows.numpy().tolist())))
"""


def test_a_run_goes_on_with_the_program_that_stands_by(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--ps", "1", "--workers", "2", "--coordinators", "2"]
    command = ["-m", "stratagem_deploy.cli", "run", *options, str(tmp_path / "train.py")]
    with python(*command, output=subprocess.PIPE) as run:
        output, errors = run.communicate(timeout=400)
    assert (run.returncode, output) == (0, "[3]\n"), errors
    begun = (tmp_path / "begun").read_text().split("\n")
    assert len({line.split()[0] for line in begun if line}) == 2, "two programs coordinated"
    # Whichever of the two was the first to coordinate.
    ended = r"coordinator:[01] ended, with signal SIGKILL, and is started again as the standby"
    assert re.search(ended, errors), errors
    assert not descendants(run.pid)


def test_one_coordinator_needs_no_standby(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "killed").touch()
    options = ["--json", "--workers", "2", "--coordinators", "1"]
    command = ["-m", "stratagem_deploy.cli", "run", *options, str(tmp_path / "train.py")]
    with python(*command, output=subprocess.PIPE) as run:
        output, errors = run.communicate(timeout=400)
    assert run.returncode == 0, errors
    lines = [json.loads(line) for line in output.splitlines()]
    assert {"task": "coordinator:0", "stream": "stdout", "line": "[3]"} in lines
    assert set(lines[0]["cluster"]) == {"ps", "worker", "chief"}


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_the_end_of_the_work_is_no_failure(tmp_path: Path, as_json: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text("")
    options = [*as_json, "--workers", "1", "--coordinators", "2"]
    command = ["-m", "stratagem_deploy.cli", "run", *options, str(tmp_path / "train.py")]
    with python(*command, output=subprocess.PIPE) as run:
        output, errors = run.communicate(timeout=400)
    assert run.returncode == 0, errors
    assert "failed first" not in errors
    if as_json:
        assert json.loads(output.splitlines()[-1])["failed"] == ""
