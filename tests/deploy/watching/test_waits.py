"""Whether waits of real clients, at real servers, name their culprit."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem._coordinator import monitor
from stratagem.consistency import Async, Consistency, Sync
from stratagem_proto.v1.barrier_pb2 import BarrierRequest, BarrierResponse
from stratagem_proto.v1.session_pb2 import Task
from stratagem_psserver.environment import Environment
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.clusters import Cluster
from tests.client.coordinator.coordination import Coordination, coordinating
from tests.client.coordinator.here import Gate
from tests.conftest import TOKEN
from tests.deploy.watching.asked_doctor import AskedDoctor, Finding
from tests.deploy.watching.slow_compute import GatedCompute
from tests.full import a_few
from tests.psserver.wire import LARGE, RawClient, sgd

# Heartbeats come three times in a lease.
SETTINGS = ServerSettings(token=TOKEN, lease_seconds=3)
AT_ONCE = ("--patience", "0")


@contextmanager
def two_clients(server: ParameterServer) -> Iterator[list[RawClient]]:
    with (
        RawClient(server.address, TOKEN, Task(job="worker", index=0)) as first,
        RawClient(server.address, TOKEN, Task(job="worker", index=1)) as second,
    ):
        for client in (first, second):
            client.open()
        yield [first, second]


def test_who_does_not_come_to_a_barrier_is_named(doctor: AskedDoctor) -> None:
    tasks = [Task(job="worker", index=index) for index in range(2)]
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        RawClient(server.address, TOKEN, tasks[0]) as waits,
        RawClient(server.address, TOKEN, tasks[1]) as stays_away,
        ThreadPoolExecutor() as threads,
    ):
        waits.open()
        stays_away.open()
        assert not doctor.findings(server.address)
        arrival = BarrierRequest(
            session_id=waits.session_id, name="built", num_tasks=2, wait_seconds=60
        )
        passing = threads.submit(waits.unary, "Barrier", arrival, BarrierResponse, 60.0)
        told = doctor.until(lambda _: True, server.address, *AT_ONCE)
        assert told["culprits"] == ["worker:1"]
        assert "barrier 'built': worker:0 waits" in told["what"]
        arrival.session_id = stays_away.session_id
        stays_away.unary("Barrier", arrival, BarrierResponse)
        passing.result()


def _is_at_the_lock(finding: Finding) -> bool:
    return "take_the_lock" in finding["what"]


def test_the_line_is_told_at_which_a_worker_keeps_a_step_waiting(doctor: AskedDoctor) -> None:
    """A lock in the user's code, as one would meet it: heartbeats go on all the while."""
    lock = threading.Lock()

    def take_the_lock() -> None:
        with lock:
            pass

    def train(strategy: stratagem.ParameterServerStrategy, number: int) -> None:
        with strategy.scope():
            model = nn.Linear(2, 1)
        optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

        def step() -> None:
            if number == 1:
                take_the_lock()
            optimizer.zero_grad()
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()

        strategy.run(step)

    with ParameterServer(SETTINGS) as server, ThreadPoolExecutor() as threads:
        cluster = Cluster([server.address], 2)
        lock.acquire()
        training = threads.submit(cluster.run, train, consistency=Sync())
        try:
            told = doctor.until(
                lambda one: "take_the_lock" in one["what"], server.address, *AT_ONCE
            )
        finally:
            lock.release()
        training.result()
    assert told["culprits"] == ["worker:1"]
    assert "step 1 of 'SGD': worker:0 waits" in told["what"]


def test_workers_that_wait_for_each_other_are_told_together(doctor: AskedDoctor) -> None:
    """They pass barriers in another order."""

    def train(strategy: stratagem.ParameterServerStrategy, number: int) -> None:
        with pytest.raises(stratagem.UnavailableError):
            strategy.barrier(("saved", "trained")[number])

    with ParameterServer(SETTINGS) as server, ThreadPoolExecutor() as threads:
        cluster = Cluster([server.address], 2)
        training = threads.submit(cluster.run, train, connect_seconds=0.1)
        told = doctor.until(lambda one: len(one["culprits"]) == 2, server.address, *AT_ONCE)
        server.stop(grace=0)
        training.result()
    assert told["culprits"] == ["worker:0", "worker:1"]
    assert "barrier 'saved': worker:0 waits" in told["what"]
    assert "barrier 'trained': worker:1 waits" in told["what"]
    assert "the same barriers in the same order" in told["remedy"]


def _is_of_variable(finding: Finding) -> bool:
    return "variable 'big'" in finding["what"]


@contextmanager
def an_update_that_takes_long(server: ParameterServer, compute: GatedCompute) -> Iterator[None]:
    """Worker 1 updates "big", and worker 0 waits for the lock of it."""
    with two_clients(server) as (waits, holds), ThreadPoolExecutor() as threads:
        holds.create(big=torch.ones(LARGE))
        compute.gate.clear()
        update = sgd(), {"big": torch.ones(LARGE)}
        holding = threads.submit(holds.update, *update)
        try:
            assert compute.is_waiting.wait(60)
            waiting = threads.submit(waits.update, *update)
            yield
        finally:
            compute.gate.set()
        holding.result()
        waiting.result()


def test_what_holds_a_variable_for_which_a_request_waits_is_named(doctor: AskedDoctor) -> None:
    compute = GatedCompute()
    with (
        ParameterServer(SETTINGS, Environment(compute=compute)) as server,
        an_update_that_takes_long(server, compute),
    ):
        found = doctor.until(_is_of_variable, server.address, *AT_ONCE)
        table = doctor.output("status", server.address)
    assert (found["culprits"], found["stalls"]) == (["ps:0"], True)
    assert "variable 'big': worker:0 waits" in found["what"]
    assert "for the end of the update of worker:1 on ps:0, which holds it" in found["what"]
    assert "1 wait (lock)" in table
    assert "end of the update of worker:1" in table


def test_a_request_that_has_its_variables_alone_does_not_wait(doctor: AskedDoctor) -> None:
    with ParameterServer(SETTINGS) as server, two_clients(server) as (client, _):
        client.create(big=torch.ones(LARGE))
        client.update(sgd(), {"big": torch.ones(LARGE)})
        assert server._state.waits.released("/job:worker/task:0") is None
        assert not [*server._state.waits.report()]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for functions that are told at once."""
    monkeypatch.setattr(monitor, "QUIET_SECONDS", 0.0)


def addresses(coordination: Coordination) -> list[str]:
    cluster = coordination.cluster
    return [*map(str, cluster.job_tasks("ps")), *map(str, cluster.job_tasks("worker"))]


@pytest.mark.usefixtures("soon")
def test_a_join_is_told_with_the_function_that_does_not_end(doctor: AskedDoctor) -> None:
    gate = Gate()
    with coordinating(num_workers=2) as coordination, ThreadPoolExecutor() as threads:
        stratagem_variable(coordination)
        coordination.coordinator.schedule(gate.pass_through)
        gate.wait_for()
        joining = threads.submit(coordination.coordinator.join)
        try:
            found = doctor.until(_is_awaited, *addresses(coordination), *AT_ONCE)
            table = doctor.output("status", *addresses(coordination))
        finally:
            gate.open()
        joining.result()
    assert found["stalls"]
    assert found["culprits"][0] in ("worker:0", "worker:1")
    assert "for the end of all functions" in found["what"]
    assert "end of 'Gate.pass_through' of worker:" in table


def _is_awaited(finding: Finding) -> bool:
    return "chief:0 waits" in finding["what"]


def stratagem_variable(coordination: Coordination) -> None:
    """Connects to the servers, which hear of the program from then on."""
    with coordination.strategy.scope():
        stratagem.Variable(torch.zeros(()), trainable=False, name="count")


@pytest.mark.full("who joins is told in the same way")
@pytest.mark.usefixtures("soon")
def test_who_fetches_a_value_is_told_with_its_function(doctor: AskedDoctor) -> None:
    gate = Gate()
    with coordinating(num_workers=1) as coordination, ThreadPoolExecutor() as threads:
        stratagem_variable(coordination)
        value = coordination.coordinator.schedule(gate.pass_through)
        gate.wait_for()
        fetching = threads.submit(coordination.coordinator.fetch, value)
        try:
            found = doctor.until(_is_awaited, *addresses(coordination), *AT_ONCE)
        finally:
            gate.open()
        fetching.result()
    assert found["culprits"] == ["worker:0"]
    assert "for the value of 'Gate.pass_through'" in found["what"]


def model_and_step(strategy: stratagem.ParameterServerStrategy) -> Any:
    """A small model, and a step of it."""
    with strategy.scope():
        model = nn.Linear(2, 1)
    optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def step(before: Any = None, after: Any = None) -> None:
        if before:
            before()
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        if after:
            after()

    return step


def test_a_save_names_who_is_in_the_midst_of_a_step(doctor: AskedDoctor, tmp_path: Path) -> None:
    in_step, goes_on = threading.Event(), threading.Event()

    def stay() -> None:
        in_step.set()
        goes_on.wait(60)

    def train(strategy: stratagem.ParameterServerStrategy, number: int) -> None:
        step = model_and_step(strategy)
        if number == 1:
            strategy.run(step, kwargs={"after": stay})
        else:
            in_step.wait(60)
            strategy.save(tmp_path).result(60)

    with ParameterServer(SETTINGS) as server, ThreadPoolExecutor() as threads:
        cluster = Cluster([server.address], 2)
        training = threads.submit(cluster.run, train)
        try:
            found = doctor.until(
                lambda one: "a moment between steps" in one["what"], server.address, *AT_ONCE
            )
        finally:
            goes_on.set()
        training.result()
    assert found["culprits"] == ["worker:1"]
    assert "worker:0 waits" in found["what"]


def _is_of_checkpoint(finding: Finding) -> bool:
    return "checkpoint" in finding["what"]


def test_a_save_names_the_server_whose_part_is_not_written(
    doctor: AskedDoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, writes = threading.Event(), os.fsync

    def write(descriptor: Any) -> None:
        disk.wait(60)
        writes(descriptor)

    monkeypatch.setattr(os, "fsync", write)
    with (
        ParameterServer(SETTINGS) as server,
        Cluster([server.address], 1).strategy(0) as chief,
        chief.scope(),
    ):
        stratagem.Variable(torch.ones(4), name="few")
        saved = chief.save(tmp_path, wait=False)
        try:
            found = doctor.until(_is_of_checkpoint, server.address, *AT_ONCE)
        finally:
            disk.set()
        saved.result(60)
    assert (found["culprits"], found["stalls"]) == (["ps:0"], True)
    assert "worker:0 waits" in found["what"]
    assert "for the part of ps:0, whose variables have 16 B" in found["what"]


@a_few("consistency", [Async(), Sync()], "who waits is told by the same account in every mode")
def test_a_worker_that_is_slow_by_itself_is_named_and_who_waits_for_it_is_not(
    doctor: AskedDoctor, consistency: Consistency
) -> None:
    over = threading.Event()

    def train(strategy: stratagem.ParameterServerStrategy, number: int) -> None:
        step = model_and_step(strategy)
        work = (lambda: time.sleep(0.1)) if number == 1 else None
        # With synchronous steps, who stops first would leave the other one alone.
        for _ in range(1000):
            strategy.run(step, kwargs={"before": work})
            if over.is_set():
                return

    with ParameterServer(SETTINGS) as server, ThreadPoolExecutor() as threads:
        cluster = Cluster([server.address], 2)
        training = threads.submit(cluster.run, train, consistency=consistency)
        try:
            found = doctor.until(lambda one: "by itself" in one["what"], server.address)
            table = doctor.output("status", server.address)
        finally:
            over.set()
        training.exception()
    assert found["culprits"] == ["worker:1"]
    assert "worker:1 takes 1" in found["what"]
    assert "own time for a step" in table
