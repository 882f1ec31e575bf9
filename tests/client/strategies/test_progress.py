"""Bars that show how training goes."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import stratagem
from stratagem._strategies.progress_bar import Staleness
from stratagem.consistency import Async, ConsistencyReport, WorkerReport
from stratagem_proto.errors import InvalidTypeError, UnavailableError
from tests.client.clusters import running

Look = dict[str, ConsistencyReport]


class Stream(IterableDataset[torch.Tensor]):
    """Data of a length that nobody knows, which count how often they are opened."""

    def __init__(self) -> None:
        self.opened = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.opened += 1
        yield from torch.arange(3.0)


@pytest.fixture
def strategy() -> stratagem.Strategy:
    return stratagem.OneDeviceStrategy("CPU:0")


def test_a_bar_shows_the_steps_and_the_last_numbers(strategy: stratagem.Strategy) -> None:
    data = strategy.experimental_distribute_dataset(3 * [torch.ones(2)])
    with io.StringIO() as screen:
        for number, _ in enumerate(strategy.progress(data, file=screen, mininterval=0)):
            strategy.log({"loss": 0.5**number, "rate": torch.tensor(0.1)})
        shown = screen.getvalue().split("\r")
    assert " 0/3 " in shown[1]
    assert "loss" not in shown[1]
    assert " 3/3 " in shown[-1]
    assert "steps/s, loss=0.25, rate=0.1]" in shown[-1]


def test_data_without_a_length_are_gone_over_and_opened_once(strategy: stratagem.Strategy) -> None:
    stream = Stream()
    data = strategy.experimental_distribute_dataset(stream)
    with io.StringIO() as screen:
        assert [float(row) for row in strategy.progress(data, file=screen)] == [0.0, 1.0, 2.0]
        assert "3 steps [" in screen.getvalue()
    assert stream.opened == 1


def test_a_shuffled_loader_gives_the_same_with_a_bar(strategy: stratagem.Strategy) -> None:
    def order(shown: bool) -> list[int]:
        torch.manual_seed(0)
        rows: Any = range(20)
        loader = DataLoader(rows, batch_size=None, shuffle=True)
        with io.StringIO() as screen:
            bar = strategy.progress(loader, file=screen)
            return [int(row) for row in (bar if shown else loader)]

    assert order(shown=True) == order(shown=False)


def test_a_total_that_is_given_counts(strategy: stratagem.Strategy) -> None:
    with io.StringIO() as screen:
        list(strategy.progress(range(3), total=12, file=screen))
        assert "/12 " in screen.getvalue()


def test_leaving_the_loop_closes_the_bar(strategy: stratagem.Strategy) -> None:
    with io.StringIO() as screen:
        bar = strategy.progress(range(100), file=screen, mininterval=0)
        for number in bar:
            if number == 2:
                break
        shown = screen.getvalue()
        assert shown.endswith("\n")
        bar.refresh()
        bar.close()
        assert screen.getvalue().count("\n") == 1


def test_nothing_is_asked_for_between_two_times_that_a_bar_is_shown(
    strategy: stratagem.Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    scalars = strategy.extended._scalars
    asked: list[dict[str, float]] = []
    latest = scalars.latest

    def noted() -> dict[str, float]:
        asked.append(latest())
        return asked[-1]

    monkeypatch.setattr(scalars, "latest", noted)
    with io.StringIO() as screen:
        for number in strategy.progress(range(1000), file=screen, mininterval=1000):
            strategy.log({"step": number})
    # As it appears, and as it is closed.
    assert asked == [{}, {"step": 999}]


def test_what_is_no_data_is_refused(strategy: stratagem.Strategy) -> None:
    with pytest.raises(InvalidTypeError, match="progress goes over data, and 7 cannot"):
        strategy.progress(7)  # type: ignore[arg-type]


@pytest.mark.full("the bar and the staleness have tests of their own")
def test_the_chief_alone_shows_a_bar_with_the_staleness_of_the_cluster() -> None:
    over = threading.Event()

    def train(strategy: stratagem.ParameterServerStrategy, worker: int) -> str:
        with strategy.scope():
            model = torch.nn.Linear(2, 1)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = stratagem.DistributedOptimizer(sgd)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(4, 2)).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()  # type: ignore[no-any-return]

        screen, deadline = io.StringIO(), time.monotonic() + 90
        for _ in strategy.progress(iter(int, 1), file=screen):
            strategy.log({"loss": strategy.run(step)})
            if "staleness=" in screen.getvalue() or time.monotonic() > deadline:
                over.set()
            if over.is_set():
                break
        return screen.getvalue()

    with running(1, 2) as cluster:
        chiefs, others = cluster.run(train)
    assert "steps/s, loss=" in chiefs
    assert "staleness=" in chiefs
    assert others == ""


class Clock:
    """Time as a test sets it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def report(**staleness: dict[int, int]) -> Look:
    workers = {name: WorkerReport(1, 0, counts, "") for name, counts in staleness.items()}
    return {"SGD": ConsistencyReport(Async(), 1, workers)}


def test_staleness_is_the_mean_of_all_workers_since_the_look_before() -> None:
    clock = Clock()
    looks = [report(a={0: 5}), report(a={0: 6, 2: 1}, b={1: 2}), report(a={0: 1}), {}]
    staleness = Staleness(lambda: looks.pop(0), 2.0, clock)
    found = []
    for clock.now in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        found.append(staleness.latest())
    # The last of these looks met servers that had been started again.
    assert found == [None, None, None, 1.0, 1.0, None]


def test_a_server_that_does_not_answer_ends_no_loop() -> None:
    def unavailable() -> Look:
        raise UnavailableError("gone")

    clock = Clock()
    staleness = Staleness(unavailable, 2.0, clock)
    clock.now = 5.0
    assert staleness.latest() is None


def test_the_thread_that_shows_bars_of_slow_loops_asks_nobody() -> None:
    clock = Clock()
    looks: list[Look] = []

    def look() -> Look:
        looks.append({})
        return {}

    staleness = Staleness(look, 2.0, clock)
    clock.now = 5.0
    other = threading.Thread(target=staleness.latest)
    other.start()
    other.join()
    assert looks == []
    staleness.latest()
    assert looks == [{}]
