"""Steps that begin with the read of their values."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import stratagem
from stratagem import ParameterServerStrategy
from stratagem.consistency import Async, Bounded, Consistency, Sync
from tests.client.clusters import Cluster, running
from tests.client.parameter_server.calls import calls
from tests.client.parameter_server.counter import Counter
from tests.faults import CutAt, FaultyProxy, Verdict
from tests.full import a_few

pytestmark = pytest.mark.plain_pushes_too

STEPS = 5
PATIENCE = 60.0


@pytest.fixture
def pair() -> Iterator[list[ParameterServerStrategy]]:
    """Two workers, whose steps the test takes in turns."""
    with (
        running(2, num_workers=2) as cluster,
        cluster.strategy(0) as chief,
        cluster.strategy(1) as other,
    ):
        yield [chief, other]


def seen(counter: Counter) -> list[float]:
    """What a worker begins a step with, which it takes."""
    found: list[float] = []
    parameters = list(counter.module.parameters())
    counter.before_push = lambda: found.extend([each.item() for each in parameters])
    counter.add()
    return found


@a_few(
    "consistency,leaves,reads",
    # What a synchronous step has made is there when all have contributed.
    [("async", 0, STEPS), ("sync", 0, 2 * STEPS), (Bounded(0), STEPS, STEPS)],
    "the mode decides in one place",
    2,
)
def test_leave_is_asked_for_by_itself_only_where_others_are_waited_for(
    consistency: Consistency | str, leaves: int, reads: int
) -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> None:
        counter = Counter(strategy)
        counter.add()
        for _ in range(2):
            together.wait(PATIENCE)
            if worker == 0:
                methods = "BeginStep", "Read", "Update"
                counts.append([calls(one, *methods) for one in cluster.servers])
            together.wait(PATIENCE)
            for _ in range(STEPS):
                counter.add()

    together, counts = threading.Barrier(2), list[list[list[int]]]()
    with running(2, num_workers=2) as cluster:
        cluster.run(program, consistency=consistency)
    spent = [
        [(y - x) / 2 for x, y in zip(*both, strict=True)] for both in zip(*counts, strict=True)
    ]
    assert spent == [[leaves, reads, STEPS], [0, reads, STEPS]]


def test_a_step_begins_with_all_that_was_finished_before(
    pair: list[ParameterServerStrategy],
) -> None:
    counters = [Counter(strategy) for strategy in pair]
    found = [seen(counters[turn]) for turn in (0, 1, 0, 0, 1, 1, 0)]
    assert found == [[number, number] for number in range(7)]


def test_who_is_not_the_chief_hears_of_a_change_as_it_begins_a_step(
    pair: list[ParameterServerStrategy],
) -> None:
    first, second = [Counter(strategy) for strategy in pair]
    for counter in (first, second):
        counter.add()
    pair[0].set_consistency(Bounded(1))
    # The chief has begun its second step by saying so.
    assert pair[0].consistency_report()["SGD"].since == 3
    assert [seen(second) for _ in range(2)] == [[2, 2], [3, 3]]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(seen, second)
        for _ in range(2):
            first.add()
        assert waiting.result(PATIENCE) >= [5, 5]


def test_updates_are_as_stale_as_others_finished_steps_since_they_began(
    pair: list[ParameterServerStrategy],
) -> None:
    first, second = [Counter(strategy) for strategy in pair]
    with ThreadPoolExecutor(1) as threads:

        def others() -> None:
            for _ in range(3):
                threads.submit(second.add).result()

        first.before_push = others
        first.add()
    for strategy in pair:
        strategy.refresh()
    report = pair[0].consistency_report()["SGD"]
    staleness = {task[-1]: one.staleness for task, one in report.workers.items()}
    # Of its third step the second worker tells when it begins another.
    assert staleness == {"0": {2: 1}, "1": {0: 2, 1: 1}}


def test_a_step_without_values_to_read_begins_all_the_same(
    pair: list[ParameterServerStrategy],
) -> None:
    counters = [Counter(strategy) for strategy in pair]
    counters[0].add()
    with stratagem.experimental.cache_variable_reads():
        for _ in range(STEPS):
            counters[0].add()
    pair[0].refresh()
    report = pair[1].consistency_report()["SGD"]
    assert report.workers["/job:worker/task:0"].steps == STEPS + 1


@a_few(
    "verdict",
    [Verdict.CUT_WITHIN, Verdict.CUT_AFTER],
    "the session repeats a request wherever it was cut",
)
def test_a_step_whose_beginning_is_not_answered_begins_once(verdict: Verdict) -> None:
    with (
        running(1, num_workers=2) as cluster,
        FaultyProxy(cluster.servers[0]) as proxy,
        Cluster([proxy.address], 2).strategy() as strategy,
    ):
        counter = Counter(strategy)
        counter.add()
        for number in range(STEPS):
            proxy.judge = CutAt(number, verdict)
            counter.add()
        proxy.judge = CutAt(-1)
        strategy.refresh()
        report = strategy.consistency_report()["SGD"]
        assert report.workers["/job:worker/task:0"].steps == STEPS + 1
        assert proxy.cuts
    assert report.consistency == Async()


def test_steps_after_several_synchronous_ones_begin_with_both() -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> list[list[float]]:
        counters = [Counter(strategy, Sync()), Counter(strategy, Sync())]

        def step() -> list[float]:
            found = [each.item() for counter in counters for each in counter.module.parameters()]
            for counter in counters:
                counter._step()
            return found

        return [strategy.run(step) for _ in range(STEPS)]

    with running(2, num_workers=2) as cluster:
        results = cluster.run(program, consistency="sync")
    assert results == [[[2.0 * number] * 4 for number in range(STEPS)]] * 2
