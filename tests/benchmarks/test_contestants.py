"""The benchmarks measure what they say; how fast it is, no test says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.harness.contest import Contest
from benchmarks.harness.environments import Foreign, missing, python_of
from benchmarks.harness.programs import Programs
from benchmarks.harness.turns import hold
from benchmarks.measurements import (
    capacity,
    clicks,
    durability,
    lookups,
    movielens,
    resnet,
    scheduling,
    sessions,
    startup,
    steps,
    transfer,
    workers,
)
from benchmarks.peers.process import Peer, Program
from benchmarks.peers.processor_time import processor_seconds
from stratagem_deploy import LocalCluster
from stratagem_deploy.processes.process import import_path
from tests.waiting import eventually

ALL = tuple(Foreign)
SMALL = steps.Model(layers=1, width=4, batch=2)


def in_threads(**settings: Any) -> LocalCluster:
    """A cluster that starts at once."""
    return LocalCluster(**{**settings, "processes": False})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clusters without processes, while contestants are in this process too."""
    for module in ("clusters", "startup"):
        cluster = f"benchmarks.peers.stratagem.{module}.LocalCluster"
        monkeypatch.setattr(cluster, in_threads)
    # Of each turn, which is only answered here.
    monkeypatch.setattr("benchmarks.peers.stratagem.workers._STEPS", 2)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "contest",
    [
        steps.steps([replace(steps.COMPARISONS[1], model=SMALL)])[0],
        durability.durability()[0],
        *(
            pytest.param(each, marks=pytest.mark.full("all contests are answered in one way"))
            for each in (
                lookups.lookups(),
                resnet.resnet(tensors=3),
                scheduling.scheduling([2])[0],
                capacity.capacity(["small", "rows"]),
                durability.durability()[1],
            )
        ),
        *(pytest.param(each, marks=pytest.mark.long) for each in durability.durability()[2:]),
        # These start processes of their own, or take long.
        pytest.param(transfer.transfer([4_000]), marks=pytest.mark.long),
        pytest.param(movielens.movielens(), marks=pytest.mark.long),
        pytest.param(workers.workers([1]), marks=pytest.mark.long),
        pytest.param(startup.startup(), marks=pytest.mark.long),
        pytest.param(sessions.sessions(count=3), marks=pytest.mark.long),
    ],
    ids=lambda contest: contest.name,
)
def test_we_and_the_limits_answer_all_questions(
    contest: Contest, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_all(contest, monkeypatch)


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_we_and_the_local_loop_train_the_click_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("clicks", "click_model"):
        monkeypatch.setattr(f"benchmarks.peers.{module}.ROWS", (100,) * 26)
    monkeypatch.setattr("benchmarks.peers.clicks.EXAMPLES", 8192)
    monkeypatch.setattr("benchmarks.peers.clicks.TURN", 4096)
    file = tmp_path / "clicks.npz"
    for contest in [*clicks.clicks(file=file), capacity.capacity(["clicks"], file)]:
        answer_all(contest, monkeypatch)


def answer_all(contest: Contest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has us and the limits answer each question that they are asked."""
    for contestant in contest.among([]).contestants:
        for name, value in contestant.settings.items():
            monkeypatch.setenv(name, value)
        program = import_module(f"benchmarks.peers.{contestant.module}")
        with program.contestant(*contestant.arguments) as answer:
            for question in contest.questions:
                if contestant.name in question.of:
                    assert answer(question.asked, 0.01) >= 0


def profiled(name: str, number: int, folder: Path) -> str:
    """What is printed of a profile."""
    # In a process where torch has compiled something, the profiler goes round for ever.
    printed = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.profiles", name),
            *("--number", str(number), "--out", str(folder)),
        ],
        env=os.environ | import_path(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert printed.returncode == 0, printed.stderr
    return printed.stdout


@pytest.mark.long
def test_a_step_is_profiled_by_parts(tmp_path: Path) -> None:
    printed = profiled("step", 2, tmp_path)
    parts = re.findall(r"^\| [a-zA-Z ]+ \| \d+ \| (\d+)% \|$", printed, re.M)
    assert 90 <= sum(map(int, parts)) <= 110
    assert (tmp_path / "report.md").read_text() == printed.removesuffix("\n")


@pytest.mark.long
def test_parts_of_a_lookup_add_up_to_all_of_it(tmp_path: Path) -> None:
    printed = profiled("lookup", 5, tmp_path)
    rows = re.findall(r"^\| [a-z, ]+ \| (-?\d*) \| (-?\d+) \|$", printed, re.M)
    for column in zip(*rows, strict=True):
        *parts, whole = [int(cell) for cell in column if cell]
        assert len(parts) >= 8
        assert abs(sum(parts) - whole) <= len(parts)


@pytest.mark.long
@pytest.mark.parametrize("foreign", ALL)
def test_peers_answer_in_environments_of_their_own(foreign: Foreign) -> None:
    if why := missing(foreign):
        pytest.skip(why)
    contest = transfer.transfer([4_000], seconds=0.0)
    theirs = [each for each in contest.contestants if each.peer is foreign]
    alone = replace(contest, contestants=theirs)
    with Programs() as programs:
        outcome = hold(alone, programs, lambda _: 2, lambda _: None)
    assert outcome.failed == {}
    assert {cell.contestant for cell in outcome.figures} == {theirs[0].name}


def test_a_restless_program_is_stopped_between_its_turns() -> None:
    socket = "benchmarks.peers.limits.socket"
    restless = Program(Path(sys.executable), socket, ["unix"], restless=True)
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = set(children.read_text().split())
    with Peer(restless) as program:
        program.wait_until_ready()
        (child,) = set(children.read_text().split()) - before
        status = Path(f"/proc/{child}/status")
        eventually(lambda: "T (stopped)" in status.read_text())
        assert program.measure("push 100", 0.0) > 0
        eventually(lambda: "T (stopped)" in status.read_text())
    assert not status.exists()


def test_a_program_that_cannot_start_says_why() -> None:
    absent = Program(Path(sys.executable), "benchmarks.peers.absent")
    failing = pytest.raises(RuntimeError, match=r"does not answer.*\n.*No module named")
    with Peer(absent) as program, failing:
        program.wait_until_ready()


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


def test_a_peer_without_its_environment_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_PYTHON", "/nowhere/python")
    assert missing(Foreign.RAY) == "there is no /nowhere/python; run `make peers`"
    assert missing(Foreign.TORCH_RPC) == ""
    assert python_of(None) == Path(sys.executable)
