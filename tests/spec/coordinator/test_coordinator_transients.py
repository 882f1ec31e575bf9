"""Failures that pass, which scheduled functions do not see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch

import stratagem
from stratagem import ClusterSpec
from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.v1.worker_pb2 import WorkEvent
from stratagem_proto.wire.payloads import batches
from stratagem_rpc.channel import Deadlines
from stratagem_worker import session
from stratagem_worker.functions import Interrupted
from tests.client.coordinator.coordination import (
    Coordination,
    coordinating,
    new_resolver,
)
from tests.client.coordinator.here import Journal
from tests.faults import CutAt, FaultyProxy
from tests.waiting import eventually


class Route:
    """The way to the first server of a cluster, on which connections may be lost."""

    proxy: FaultyProxy

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def resolver(self, cluster: ClusterSpec) -> ClusterResolver:
        """What the program sees of the cluster."""
        server = FaultyProxy(cluster.task_address("ps", 0))
        self.proxy = self._stack.enter_context(server)
        jobs = {**cluster.as_dict(), "ps": [self.proxy.address]}
        return new_resolver(ClusterSpec(jobs))


@pytest.fixture
def route() -> Iterator[Route]:
    with ExitStack() as stack:
        yield Route(stack)


@pytest.fixture
def coordination(route: Route) -> Iterator[Coordination]:
    with coordinating(num_workers=1, resolver=route.resolver) as found:
        yield found


@pytest.mark.spec("FLT-8")
def test_a_server_that_cannot_be_reached_for_a_moment_is_no_error(
    coordination: Coordination, route: Route
) -> None:
    with coordination.strategy.scope():
        variable = stratagem.Variable(torch.zeros(()))
    coordination.coordinator.schedule(variable.assign_add, args=(1.0,)).fetch()
    for frame in range(4):
        route.proxy.judge = CutAt(frame)
        coordination.coordinator.schedule(variable.assign_add, args=(1.0,))
        coordination.coordinator.join()
    assert route.proxy.cuts >= 4
    assert variable.numpy() == 5


@pytest.mark.spec("FLT-9")
def test_a_server_that_is_too_slow_for_a_moment_is_no_error(
    coordination: Coordination, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    with coordination.strategy.scope():
        variable = stratagem.Variable(torch.zeros(()))
    coordination.coordinator.schedule(variable.assign_add, args=(1.0,)).fetch()
    tries: list[int] = []

    def attempt(self: Deadlines, nbytes: int = 0, wait: float = 0.0) -> float:
        tries.append(nbytes)
        return 0.1 if len(tries) < 3 else 30.0

    monkeypatch.setattr(Deadlines, "attempt", attempt)
    route.proxy.delay = lambda: 0.2 if len(tries) < 3 else 0.0
    coordination.coordinator.schedule(variable.assign_add, args=(1.0,))
    coordination.coordinator.join()
    assert len(tries) >= 3
    assert variable.numpy() == 2


@pytest.mark.spec("FLT-10")
def test_a_function_that_its_worker_gave_up_unasked_runs_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = Journal()

    def given_up_once() -> int:
        journal.write("begun")
        if len(journal.entries) == 1:
            raise Interrupted
        return len(journal.entries)

    with coordinating(num_workers=1) as coordination:
        assert coordination.coordinator.schedule(given_up_once).fetch() == 2
        coordination.coordinator.join()
        # The worker goes on: it is not that it was lost and came back.
        assert "was lost" not in caplog.text


@pytest.mark.spec("FLT-11")
def test_a_worker_that_fails_in_an_unknown_way_counts_as_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal()

    def failing_once(events: list[WorkEvent]) -> Iterator[list[WorkEvent]]:
        if len(journal.entries) == 1:
            journal.write("failed")
            raise ZeroDivisionError
        return batches(events)

    monkeypatch.setattr(session, "_batches", failing_once)
    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        coordinator.schedule(journal.write, args=("ran",))
        coordinator.join()
        eventually(lambda: coordinator.workers == [0])
    assert journal.entries == ["ran", "failed", "ran"]
    assert "was lost: the server failed with ZeroDivisionError" in caplog.text
