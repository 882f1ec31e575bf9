"""What chaos may do to a task, and what is wrong with a training."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos.account import Account, Outcome
from benchmarks.chaos.alone import evenly
from benchmarks.chaos.faults import Faults
from benchmarks.chaos.hosts.proxies import Proxies
from benchmarks.chaos.launcher import Launcher
from benchmarks.chaos.picture import drawn
from benchmarks.chaos.servers.movable import MovableServers
from benchmarks.chaos.strikes import Strike
from benchmarks.chaos.verdict import EARLY_NOISE, NOISE, wrong
from tests.waiting import eventually

RIGHT = Outcome(error=0.911, passes=30, batches=80, miscounted=0, surplus=0)


def test_a_training_without_a_fault_in_it_is_right() -> None:
    assert wrong(RIGHT, 0.911, {"user.weight": 2400}) == []


@pytest.mark.parametrize(
    ("outcome", "updates", "says"),
    [
        (replace(RIGHT, miscounted=1), 2400, "1 ratings were not trained on once in each pass"),
        (replace(RIGHT, surplus=-7), 2400, "too large by -7"),
        (replace(RIGHT, error=0.912 + NOISE), 2400, "the error is 0.9240, and 0.9110 without"),
        (RIGHT, 2399, "was updated 2399 times, and not 2400"),
        (RIGHT, 2401, "was updated 2401 times, and not 2400"),
    ],
)
def test_what_is_lost_or_there_twice_is_told(outcome: Outcome, updates: int, says: str) -> None:
    (found,) = wrong(outcome, 0.911, {"user.weight": updates})
    assert says in found


@pytest.mark.parametrize(("passes", "noise"), [(3, EARLY_NOISE), (4, NOISE)])
def test_the_error_of_the_first_passes_may_differ_more(passes: int, noise: float) -> None:
    updates = {"user.weight": passes * RIGHT.batches}
    for error, wrongs in ((0.9 + noise - 1e-6, 0), (0.9 + noise + 1e-6, 1)):
        assert len(wrong(replace(RIGHT, passes=passes, error=error), 0.9, updates)) == wrongs


def _until_told(told: threading.Event) -> None:
    told.wait()


class Kind:
    """A fault that lasts until it is told to end."""

    name = "struck"
    tasks: Sequence[str] = ("one", "other")

    def __init__(self) -> None:
        self.struck: list[str] = []

    def strike(self, task: str, chance: random.Random) -> Strike:
        self.struck.append(task)
        return Strike(task, _until_told)


def test_a_task_has_one_fault_at_a_time_and_all_are_undone_in_the_end() -> None:
    kind = Kind()
    faults = Faults([kind], random.Random(0), 0.001, lambda: 0)
    running = threading.Thread(target=faults.run)
    running.start()
    eventually(lambda: len(faults.happened) == 2)
    faults.end()
    running.join()
    assert sorted(kind.struck) == ["one", "other"]
    assert [fault.victim for fault in faults.happened] == kind.struck


class Passing(Kind):
    """A fault of one of many tasks that is over at once."""

    tasks: Sequence[str] = tuple(map(str, range(100)))

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def strike(self, task: str, chance: random.Random) -> Strike:
        return Strike(task, lambda is_over: None)


def test_kinds_that_have_happened_least_come_first() -> None:
    names = ["rare", "common", "usual"]
    faults = Faults([*map(Passing, names)], random.Random(0), 0.001, lambda: 0)
    running = threading.Thread(target=faults.run)
    running.start()
    eventually(lambda: len(faults.happened) >= 9)
    faults.end()
    running.join()
    for turn in (0, 3, 6):
        assert sorted(fault.kind for fault in faults.happened[turn : turn + 3]) == sorted(names)


def test_servers_are_removed_until_two_are_left_and_those_are_added_that_are_away(
    tmp_path: Path,
) -> None:
    with closing(Proxies()) as hosts:
        removing, adding = MovableServers(Launcher(tmp_path, hosts, print)).kinds
        chance = random.Random(0)
        assert adding.strike("ps:0", chance) is None
        assert removing.strike("ps:0", chance) and removing.strike("ps:2", chance)
        assert [removing.strike(task, chance) for task in removing.tasks] == [None] * 4
        assert adding.strike("ps:1", chance) is None
        assert adding.strike("ps:2", chance) and removing.strike("ps:3", chance)


def test_a_coordinator_goes_on_with_the_rate_of_the_one_that_began_the_pass(tmp_path: Path) -> None:
    account = Account(tmp_path, 1e-9)
    account.plan()
    first = account.rate(0)
    account.begin()
    assert Account.of(tmp_path).rate(0) == first > Account.of(tmp_path).rate(1)


def test_steps_are_counted_without_being_read(tmp_path: Path) -> None:
    account = Account(tmp_path, 1.0)
    for _ in range(3):
        account.note_step()
    assert account.taken() == len(account.steps()) == 3


def test_rates_of_a_long_training_are_spread_from_the_first_to_the_last() -> None:
    assert evenly([3.0, 2.0, 1.0, 0.0], 2) == [3.0, 0.0]
    assert evenly([3.0, 2.0], 60) == [3.0, 2.0]


def test_a_run_without_steps_has_a_picture_too() -> None:
    assert drawn([], []).axes
