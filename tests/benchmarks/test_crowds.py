"""Many workers: what is found wrong with them, and that all of it can be right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.crowds.__main__ import Found, faults, observed
from benchmarks.crowds.samples import Sessions, drawn, fairness
from benchmarks.crowds.training import Plan
from benchmarks.endurance.samples import MEMORY, Samples

SESSIONS = Sessions(open=[4, 4], silent=[0.1, 0.4])


def found(memory: Sequence[float] = (200.0,) * 10) -> Found:
    """A crowd of four workers without a fault."""
    samples = Samples([float(each) for each, _ in enumerate(memory)])
    samples.values[MEMORY]["ps:0"] = [*memory]
    return Found(samples, SESSIONS, [9, 10, 10, 10], 5.0, 50, [50.0, 50.0], [])


def test_a_crowd_that_is_served_well_has_no_fault() -> None:
    assert [*faults(found(), 4)] == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (found()._replace(taken=51), "51 steps were acknowledged, and servers counted"),
        (found()._replace(counted=[49.0, 50.0]), "servers counted [49.0, 50.0]"),
        (found()._replace(failed=["/job:worker/task:1: gone"]), "/job:worker/task:1: gone"),
        (found()._replace(sessions=replace(SESSIONS, open=[4, 3])), "had 3 sessions of 4 workers"),
        (found()._replace(sessions=replace(SESSIONS, lost={"ps:0": "silent"})), "ps:0 was lost"),
        (found([200.0 + 20 * each for each in range(10)]), "the memory of ps:0 grows"),
    ],
)
def test_what_is_lost_or_grows_is_told(wrong: Found, says: str) -> None:
    (fault,) = faults(wrong, 4)
    assert says in fault


def test_fairness_compares_the_slowest_worker_with_the_fastest() -> None:
    assert fairness([8, 10, 9]) == 0.8
    assert fairness([0, 0]) == 0.0


def test_a_picture_has_memory_silence_and_steps() -> None:
    whole = found()
    sessions = replace(SESSIONS, silent=[0.1] * 10)
    assert len(drawn(whole.samples, sessions, whole.steps).axes) == 3


@pytest.mark.long
def test_workers_that_share_processes_are_counted_once_each_step() -> None:
    whole = observed(servers=2, workers=4, count=2, plan=Plan(2, 0.01), seconds=4.0)
    assert [*faults(whole, 4)] == []
    assert min(whole.steps) > 0
    assert set(whole.counted) == {whole.taken}
    assert len(whole.sessions.silent) == len(whole.samples.seconds) > 0
