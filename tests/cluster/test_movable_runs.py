"""`stratagem run --movable`: servers that are drained and added from a shell."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_found_runs import COMMAND, told
from tests.deploy.processes.process_tree import python
from tests.waiting import eventually

# Starting a process takes long on a busy machine.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

PATIENCE = 300.0

SCRIPT = """
import torch
from pathlib import Path
from stratagem import ParameterServerStrategy, Variable
folder = Path(__file__).parent
with ParameterServerStrategy() as strategy:
    with strategy.scope():
        counters = [Variable(torch.tensor(0), False, name=f"c{i}") for i in range(4)]
    before = [int(each.numpy()) for each in counters]
    counted = 0
    while not (folder / "enough").exists():
        for each in counters:
            each.assign_add(1)
        counted += 1
        (folder / "counted").write_text(str(counted))
    print("lost", [old + counted - int(each.numpy()) for old, each in zip(before, counters)])
    print("went on", before[0] > 0)
"""


class Run:
    """A run of the script on movable servers, and what a shell is told of it."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self._folder, self._process = folder, process
        eventually(lambda: self._counted() > 0 or process.poll() is not None, PATIENCE)
        assert process.poll() is None, process.communicate()

    def servers(self, *arguments: str) -> dict[str, Any]:
        """The answer of `stratagem servers`."""
        code, output, errors = told(self._folder, "servers", *arguments, "--json")
        assert code == 0, errors
        answer: dict[str, Any] = json.loads(output)
        return answer

    def refused(self, *arguments: str) -> str:
        """Why `stratagem servers` does not do something."""
        code, _, errors = told(self._folder, "servers", *arguments)
        assert code == 1
        return errors

    def tasks(self) -> dict[int, list[int]]:
        """The tasks of each server."""
        listed = self.servers("list")["servers"]
        return {one["server"]: [each["task"] for each in one["tasks"]] for one in listed}

    def served(self) -> list[str]:
        """The tasks that `stratagem status` finds."""
        _, output, _ = told(self._folder, "status", "--json")
        return [each["server"] for each in json.loads(output)["servers"] if each["answers"]]

    def kill(self, task: str, signum: int) -> None:
        """Sends a signal to the server that serves a task."""
        _, output, _ = told(self._folder, "status", "--json")
        statuses = json.loads(output)["servers"]
        (process,) = {each["pid"] for each in statuses if each["server"] == task}
        os.kill(process, signum)

    def await_more(self) -> None:
        """Waits until the script has gone on."""
        before = self._counted()
        eventually(lambda: self._counted() > before + 5, PATIENCE)

    def _counted(self) -> int:
        file = self._folder / "counted"
        return int(file.read_text() or 0) if file.exists() else 0

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        """Lets the script end; returns the exit code and the lines."""
        (self._folder / "enough").touch()
        output, _ = self._process.communicate(timeout=PATIENCE)
        return self._process.returncode, [json.loads(line) for line in output.splitlines()]

    def end_well(self, went_on: bool = False) -> list[dict[str, Any]]:
        """Lets the script end, which has lost nothing; returns the lines."""
        code, lines = self.end()
        said = [line["line"] for line in lines if line.get("stream") == "stdout"]
        assert (code, said) == (0, ["lost [0, 0, 0, 0]", f"went on {went_on}"]), lines
        return lines


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Run]:
    for name in ("enough", "counted"):
        (folder / name).unlink(missing_ok=True)
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [*COMMAND, "run", "--json", *options, str(script)]
    environment = {"TMPDIR": str(folder)}
    with python(*command, environment=environment, output=subprocess.PIPE) as process:
        yield Run(folder, process)


def test_servers_are_drained_stopped_and_added_while_a_script_runs(tmp_path: Path) -> None:
    with running(tmp_path, "--movable", "--ps", "3") as run:
        assert run.tasks() == {0: [0], 1: [1], 2: [2]}
        (move,) = run.servers("drain", "0")["moves"]
        assert (move["task"], move["source"]) == (0, 0)
        run.await_more()
        # A server that is stopped gives its tasks away, and comes back without any.
        run.kill("ps:1", signal.SIGTERM)
        eventually(lambda: run.tasks().get(1) == [], PATIENCE)
        run.await_more()
        moves = run.servers("add")["moves"]
        assert 3 in {each["target"] for each in moves}
        run.await_more()
        assert sorted(task for tasks in run.tasks().values() for task in tasks if task < 3) == [
            0,
            1,
            2,
        ]
        run.servers("rebalance")
        lines = run.end_well()
    (rejoining,) = [line for line in lines if line.get("rejoins")]
    assert rejoining["ended"] == "exit code 0"


def shape(lines: str) -> set[str]:
    """The lines of an output without their numbers."""
    return {re.sub(r"[0-9]+", "N", line) for line in lines.splitlines()}


def test_the_commands_of_the_page_move_tasks(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guide" / "servers.md").read_text()
    (block,) = re.findall(r"runs these commands. -->\n\n```console\n(.*?)```", page, re.DOTALL)
    (started, _), *steps = re.findall(r"^\$ stratagem (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE)
    _, *options, _ = started.split()
    with running(tmp_path, *options) as run:
        for command, shown in steps:
            code, output, errors = told(tmp_path, *command.split())
            assert (code, shape(shown) <= shape(output + errors)) == (0, True), output + errors
            run.await_more()
        run.end_well()


def test_the_only_server_of_a_run_is_replaced(tmp_path: Path) -> None:
    with running(tmp_path, "--movable", "--ps", "1", "--tls") as run:
        assert "server 0 is the last one" in run.refused("drain", "0")
        assert "there is nothing to give to server 1" in run.refused("add")
        assert run.servers("drain", "0")["moves"] == [{"task": 0, "source": 0, "target": 1}]
        run.await_more()
        run.end_well()


def test_a_run_with_a_log_goes_on_with_the_servers_that_an_earlier_one_added(
    tmp_path: Path,
) -> None:
    log = "--durability", "log", "--durability-folder", str(tmp_path / "log")
    options = "--movable", "--ps", "2", *log, "--max-restarts", "1"
    with running(tmp_path, *options) as run:
        assert "nothing to give" in run.refused("add")
        for number in ("0", "1"):
            run.servers("drain", number)
        assert run.tasks() == {0: [], 1: [], 2: [0, 1, 2]}
        run.kill("ps:0", signal.SIGKILL)
        run.await_more()
        lines = run.end_well()
    assert [line["task"] for line in lines if line.get("restart")] == ["ps:2"]
    code, _, errors = told(tmp_path, "run", "--ps", "2", *log, str(tmp_path / "train.py"))
    assert (code, "start it with that --arbiter" in errors) == (1, True), errors
    with running(tmp_path, *options) as run:
        assert run.tasks()[2] == [0, 1, 2]
        run.servers("rebalance")
        run.await_more()
        run.end_well(went_on=True)


@pytest.mark.parametrize("tls", [(), ("--tls",)])
def test_a_run_begins_with_more_tasks_than_servers_so_that_add_evens_them_out(
    tls: tuple[str, ...], tmp_path: Path
) -> None:
    log = "--durability", "log", "--durability-folder", str(tmp_path / "log")
    options = "--movable", "--ps", "2", "--tasks", "4", *log, "--max-restarts", "1", *tls
    with running(tmp_path, *options) as run:
        assert run.tasks() == {0: [0, 2], 1: [1, 3]}
        moves = run.servers("add")["moves"]
        assert moves and {each["target"] for each in moves} == {2}
        run.await_more()
        run.kill("ps:1", signal.SIGKILL)
        run.await_more()
        # What it has besides is at another port than before.
        eventually(lambda: run.served() == [f"ps:{task}" for task in range(4)], PATIENCE)
        places = run.tasks()
        lines = run.end_well()
    assert [line["restart"] for line in lines if line.get("restart")] == [1]
    with running(tmp_path, *options) as run:
        assert run.tasks() == places
        run.await_more()
        run.end_well(went_on=True)


def test_a_run_ends_when_a_server_is_killed_that_has_tasks_and_no_log(tmp_path: Path) -> None:
    with running(tmp_path, "--movable", "--ps", "2", "--max-restarts", "3") as run:
        run.kill("ps:1", signal.SIGKILL)
        code, lines = run.end()
    assert (code, lines[-1]["failed"]) == (1, "ps:1")


def test_a_run_that_keeps_its_tasks_says_how_they_could_move(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        assert "by `stratagem run --movable`" in run.refused("list")
        assert "run it with --movable" in run.refused("add")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--ps", "0"), "has no tasks that could move"),
        (("--replicas", "2"), "servers that have replicas keep their tasks"),
        (
            ("--durability", "snapshot", "--durability-folder", "images"),
            "tasks cannot move with durability 'snapshot'",
        ),
        (("--ps", "3", "--tasks", "2"), "2 tasks are too few for 3 servers"),
    ],
)
def test_what_does_not_go_with_movable_servers_is_refused(
    options: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    code, _, errors = told(tmp_path, "run", "--movable", *options, __file__)
    assert code == 2
    assert reason in " ".join(errors.replace("│", " ").split())
