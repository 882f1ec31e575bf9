"""What processes that are forked have in common, and what not."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from stratagem_deploy.processes.fork_server import ForkServer, start_forked
from stratagem_deploy.processes.forker import Order
from stratagem_deploy.processes.process import Child, Process, import_path
from tests.deploy.processes.process_tree import is_alive
from tests.waiting import eventually

pytestmark = pytest.mark.first

FACTS = """
import json, os, random, signal, sys
import numpy, torch
print(json.dumps({
    "random": [random.random(), numpy.random.rand(), torch.rand(()).item()],
    "parent": os.getppid(),
    "session": os.getsid(0) == os.getpid(),
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "path": sys.path,
    "child signal": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
}))
"""


def forked(code: str, environment: Mapping[str, str] | None = None) -> Process:
    command = [sys.executable, "-m", "tests.deploy.processes.run_loaded_code", code]
    added = {**import_path(), **(environment or {})}
    return Process("child", command, environment=added, start=start_forked)


def facts(environment: Mapping[str, str] | None = None) -> dict[str, object]:
    process = forked(FACTS, environment)
    assert process.wait(60)
    found = json.loads(process.tail())
    assert isinstance(found, dict)
    return found


def test_they_come_from_one_process_and_draw_other_random_numbers() -> None:
    one, other = facts(), facts()
    assert one["parent"] == other["parent"] != os.getpid()
    for mine, theirs in zip(one["random"], other["random"], strict=True):  # type: ignore[call-overload]
        assert mine != theirs


def test_each_has_its_own_environment_folder_and_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts()
    monkeypatch.setenv("STRATAGEM_LATER", "1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = facts()
    assert found["environment"] == {**os.environ, **import_path()}
    assert found["folder"] == str(tmp_path)
    assert found["path"] == [path or os.getcwd() for path in sys.path]


@pytest.mark.full("each environment has a fork server of its own, which takes 2 s to load torch")
def test_what_libraries_read_while_they_are_loaded_counts() -> None:
    first, second, third = facts(), facts({"OMP_NUM_THREADS": "1"}), facts()
    assert first["parent"] == third["parent"] != second["parent"]
    threads = forked("import torch; print(torch.get_num_threads())", {"OMP_NUM_THREADS": "1"})
    assert threads.wait(60)
    assert threads.tail() == "1"


@pytest.mark.full("each environment has a fork server of its own, which takes 2 s to load torch")
def test_a_program_may_set_what_libraries_read_while_they_are_loaded() -> None:
    command = [sys.executable, "-m", "tests.deploy.processes.tuned_program"]
    for given, expected in ((None, "first"), ("ours", "ours")):
        added = import_path() | ({} if given is None else {"TUNED": given})
        process = Process("child", command, environment=added, start=start_forked)
        assert process.wait(60)
        assert process.tail() == expected


def test_each_has_a_session_and_nothing_of_the_others() -> None:
    sleeper = forked("import time; print('ready', flush=True); time.sleep(1000)")
    eventually(lambda: bool(sleeper.tail()))
    found = facts()
    sleeper.end(grace=60)
    assert found["session"]
    assert found["child signal"]
    assert found["descriptors"] == [0, 1, 2]


@pytest.mark.full("fork servers are started by most tests of this folder")
def test_a_fork_server_that_was_killed_is_replaced() -> None:
    sleeper = forked("import os, time; print(os.getppid(), flush=True); time.sleep(1000)")
    eventually(lambda: bool(sleeper.tail()))
    killed = int(sleeper.tail())
    os.kill(killed, signal.SIGKILL)
    assert sleeper.wait(60)
    assert sleeper.exit_code == -signal.SIGKILL
    eventually(lambda: not is_alive(sleeper.pid))
    assert facts()["parent"] != killed


def test_a_program_that_cannot_be_loaded_says_so_itself() -> None:
    command = [sys.executable, "-m", "tests.deploy.processes.no_such_program"]
    process = Process("child", command, environment=import_path(), start=start_forked)
    assert process.wait(60)
    assert process.exit_code == 1
    assert "no_such_program" in process.tail()


# CUDA does not work in a fork of a process that has asked for devices.
LOADING = """
import importlib, sys, torch
def touched(*_): sys.exit("a GPU was asked for")
for name in ("device_count", "init", "is_available", "_lazy_init"):
    setattr(torch.cuda, name, touched)
for module in sys.argv[1:]: importlib.import_module(module)
"""
FORKED = (
    "stratagem_psserver.__main__",
    "stratagem_worker.__main__",
    "stratagem_deploy.clusters.call",
)


@pytest.mark.full("it matters where there is a GPU")
def test_what_is_loaded_before_a_fork_asks_for_no_gpu() -> None:
    command = [sys.executable, "-c", LOADING, *FORKED]
    process = Process("loading", command, environment=import_path())
    assert process.wait(60)
    assert process.exit_code == 0, process.tail()


def test_whoever_ends_meanwhile_has_no_part_in_an_exit_code(tmp_path: Path) -> None:
    server = ForkServer("tests.deploy.processes.run_code", {**os.environ, **import_path()})
    with (tmp_path / "output").open("wb") as output:

        def ended(code: int) -> Child:
            order = Order([f"raise SystemExit({code})"], dict(os.environ), os.getcwd(), sys.path)
            child = server.fork(order, output.fileno(), output.fileno())
            assert child is not None
            child.await_end()
            return child

        children = [ended(code) for code in (3, 4, 5)]
    assert [child.reap() for child in children] == [3, 4, 5]


def test_one_that_is_killed_at_once_has_ended() -> None:
    """It may not have got a process group of its own by then."""
    for _ in range(30):
        process = forked("import time; time.sleep(600)")
        process.send(signal.SIGKILL)
        assert process.wait(60)
        assert process.exit_code == -signal.SIGKILL
