"""Large values stay on the worker that made them until another one needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch

import stratagem
from stratagem import ClusterSpec
from stratagem.cluster_resolver import ClusterResolver
from stratagem.coordinator import (
    ClusterCoordinator,
    RemoteValueStatus,
    experimental_get_current_worker_index,
)
from tests.client.coordinator.coordination import (
    Coordination,
    coordinating,
    new_resolver,
)
from tests.client.coordinator.here import Gate, Journal
from tests.faults import FaultyProxy
from tests.spec.coordinator.each_worker import on_each_worker
from tests.waiting import eventually

LARGE = 1 << 20
"""Bytes of a large value."""

LITTLE = 1 << 15
"""More than functions and what they report take."""


@pytest.fixture(scope="module")
def coordination() -> Iterator[Coordination]:
    """Two workers."""
    with coordinating(num_workers=2) as found:
        yield found


@pytest.fixture
def coordinator(coordination: Coordination) -> ClusterCoordinator:
    """Theirs."""
    coordination.coordinator.join()
    return coordination.coordinator


def made(fill: int = 1) -> torch.Tensor:
    return torch.full((LARGE,), fill, dtype=torch.uint8)


def made_behind(gate: Gate) -> torch.Tensor:
    gate.pass_through()
    return made()


def summed(value: torch.Tensor) -> tuple[int, int]:
    """The sum of a value, and the worker that runs this."""
    return int(value.sum()), experimental_get_current_worker_index()


def exchanged(coordinator: ClusterCoordinator, action: Callable[[], None]) -> tuple[int, int]:
    """The bytes that an action sends to workers and receives."""
    before = coordinator.traffic()
    action()
    coordinator.join()
    passed = coordinator.traffic() - before
    return passed.sent_bytes, passed.received_bytes


@pytest.mark.spec("RMV-5")
def test_a_large_value_that_nobody_has_is_not_sent(
    coordinator: ClusterCoordinator,
) -> None:
    journal = Journal()

    def make() -> torch.Tensor:
        journal.write("ran")
        return made()

    def schedule() -> None:
        coordinator.schedule(make)

    assert max(exchanged(coordinator, schedule)) < LITTLE
    assert journal.entries == ["ran"]


@pytest.mark.spec("RMV-5")
def test_a_large_value_that_is_dropped_while_it_is_made_is_not_sent(
    coordinator: ClusterCoordinator,
) -> None:
    gate = Gate()

    def schedule() -> None:
        value = coordinator.schedule(made_behind, args=(gate,))
        gate.wait_for(1)
        del value
        gate.open()

    assert max(exchanged(coordinator, schedule)) < LITTLE


@pytest.mark.spec("RMV-3")
def test_a_large_value_that_somebody_has_comes_back(
    coordinator: ClusterCoordinator,
) -> None:
    values = []

    def schedule() -> None:
        values.append(coordinator.schedule(made))

    sent, received = exchanged(coordinator, schedule)
    assert sent < LITTLE
    assert LARGE < received < LARGE + LITTLE
    assert values[0].status is RemoteValueStatus.READY
    assert values[0].get().equal(made())


@pytest.mark.spec("RMV-3")
def test_large_values_outlive_their_worker() -> None:
    with coordinating(num_workers=1) as coordination:
        value = coordination.coordinator.schedule(made)
        coordination.coordinator.join()
        coordination.stop(0)
        assert value.fetch().sum() == LARGE


def test_a_large_value_passes_from_worker_to_worker(
    coordinator: ClusterCoordinator,
) -> None:
    """Neither its making nor its use on both workers moves it by way of the program."""
    gates = Gate(), Gate()
    sums = []

    def schedule() -> None:
        value = coordinator.schedule(made_behind, args=(gates[0],))
        gates[0].wait_for(1)
        for _ in range(6):
            sums.append(coordinator.schedule(summed_behind, args=(value, gates[1])))
        del value
        gates[0].open()
        gates[1].wait_for(2)
        gates[1].open()

    assert max(exchanged(coordinator, schedule)) < LITTLE
    found = coordinator.fetch(sums)
    assert {total for total, _ in found} == {LARGE}
    assert {worker for _, worker in found} == {0, 1}


def summed_behind(value: torch.Tensor, gate: Gate) -> tuple[int, int]:
    gate.pass_through()
    return summed(value)


def test_a_large_value_that_somebody_has_is_sent_to_no_worker(
    coordinator: ClusterCoordinator,
) -> None:
    value = coordinator.schedule(made)
    coordinator.join()
    gate = Gate()

    def schedule() -> None:
        for _ in range(4):
            coordinator.schedule(summed_behind, args=(value, gate))
        gate.wait_for(2)
        gate.open()

    assert max(exchanged(coordinator, schedule)) < LITTLE


def test_workers_forget_large_values_that_nobody_needs_any_more(
    coordination: Coordination, coordinator: ClusterCoordinator
) -> None:
    def staying() -> int:
        return coordination.staying(0) + coordination.staying(1)

    value = coordinator.schedule(made)
    total = coordinator.schedule(summed, args=(value,))
    assert total.fetch()[0] == LARGE
    assert staying()
    del value, total

    def forgotten() -> bool:
        coordinator.join()
        return not staying()

    eventually(forgotten)


@pytest.mark.spec("COO-8")
def test_a_value_that_was_lost_with_its_worker_is_made_again() -> None:
    """What needs it waits, though it was on its way to run already.

    What was changed when it was made first is not changed again.
    """
    gates, journal = (Gate(), Gate()), Journal()
    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        with coordination.strategy.scope():
            times = stratagem.Variable(0.0)

        def make() -> torch.Tensor:
            journal.write("made")
            times.assign_add(1.0)
            return made_behind(gates[0])

        value = coordinator.schedule(make)
        coordinator.schedule(gates[1].pass_through)
        totals = [coordinator.schedule(summed, args=(value,)) for _ in range(4)]
        del value
        gates[0].open()
        gates[1].wait_for(1)
        eventually(lambda: coordination.staying(0) == 1)
        coordination.stop(0)
        gates[1].open()
        coordination.start(0)
        coordinator.join()
        assert {total.fetch()[0] for total in totals} == {LARGE}
        assert times.numpy() == 1
    assert journal.entries == ["made", "made"]


class Ways(ExitStack):
    """The way to each worker, which takes another address."""

    def resolver(self, cluster: ClusterSpec) -> ClusterResolver:
        self._proxies = [
            self.enter_context(FaultyProxy(cluster.task_address("worker", index)))
            for index in cluster.task_indices("worker")
        ]
        addresses = [proxy.address for proxy in self._proxies]
        return new_resolver(ClusterSpec(cluster.as_dict() | {"worker": addresses}))

    def close_to_others(self) -> None:
        """Lets nobody pass who has not done so before."""
        for proxy in self._proxies:
            proxy.refuse()


def test_workers_that_cannot_reach_each_other_get_values_from_the_program() -> None:
    gate, ways = Gate(), Ways()
    with ways, coordinating(num_workers=2, resolver=ways.resolver) as coordination:
        coordinator = coordination.coordinator
        eventually(lambda: coordinator.workers == [0, 1])
        ways.close_to_others()
        value = coordinator.schedule(made)
        totals = [coordinator.schedule(summed_behind, args=(value, gate)) for _ in range(4)]
        del value
        gate.wait_for(2)
        gate.open()
        coordinator.join()
        found = coordinator.fetch(totals)
        assert {total for total, _ in found} == {LARGE}
        assert {worker for _, worker in found} == {0, 1}


def test_datasets_of_workers_may_be_made_of_large_values(
    coordinator: ClusterCoordinator,
) -> None:
    value = coordinator.schedule(made)
    dataset = coordinator.create_per_worker_dataset(lambda: [value])
    total = coordinator.schedule(summed_next, args=(iter(dataset),))
    assert total.fetch() == LARGE


def test_workers_that_cannot_reach_each_other_get_values_for_datasets_from_the_program() -> None:
    ways = Ways()
    with ways, coordinating(num_workers=2, resolver=ways.resolver) as coordination:
        coordinator = coordination.coordinator
        eventually(lambda: coordinator.workers == [0, 1])
        ways.close_to_others()
        value = coordinator.schedule(made)
        dataset = coordinator.create_per_worker_dataset(partial(alone, value))
        del value
        batches = iter(dataset), iter(dataset)
        for each in batches:
            assert on_each_worker(coordinator, summed_next, each) == [LARGE, LARGE]


def alone(value: Any) -> list[torch.Tensor]:
    return [value]


def summed_next(batches: Iterator[torch.Tensor]) -> int:
    return int(next(batches).sum())
