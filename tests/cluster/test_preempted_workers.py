"""Worker processes that are killed while a program coordinates them."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import torch

import stratagem
from stratagem import CancelledError, ParameterServerStrategy
from stratagem.coordinator import ClusterCoordinator
from stratagem_deploy import LocalCluster
from stratagem_proto.errors import AbortedError, WorkerLostError
from tests.cluster.interventions import beside
from tests.cluster.preemption import (
    Preemptions,
    Training,
    process_of,
)
from tests.stopping import stopped
from tests.waiting import eventually
from tests.worker.links import link_to

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(ps=2, worker_servers=2, processes=True) as running:
        yield running


def wait_without_end() -> None:
    while True:
        time.sleep(0.01)


def fail() -> None:
    raise ValueError("it is not positive")


def end_the_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.spec("FLT-2")
def test_a_function_that_ends_one_worker_after_the_other_is_given_up(
    training: Training, preemptions: Preemptions
) -> None:
    coordinator = training.coordinator
    deadly = coordinator.schedule(end_the_worker)
    harmless = training.schedule(4)
    eventually(lambda: coordinator.workers == [])
    preemptions.restart("worker", 0)
    coordinator.fetch(harmless)
    with pytest.raises(AbortedError, match="end_the_worker is not run again"):
        deadly.fetch()
    for worker in range(2):
        preemptions.restart("worker", worker)
    with pytest.raises(AbortedError, match="end_the_worker is not run again"):
        coordinator.join()
    training.schedule(2)
    training.join()
    assert training.ended == training.begun == 6


def test_a_worker_is_lost_between_functions(training: Training, preemptions: Preemptions) -> None:
    training.schedule(2)
    training.join()
    assert training.ended == training.begun == 2
    preemptions.restart("worker")
    training.schedule(2)
    training.join()
    assert training.ended == training.begun == 4


def test_a_worker_is_lost_in_the_midst_of_a_function(
    training: Training, preemptions: Preemptions
) -> None:
    training.run_endlessly(4)
    assert not training.coordinator.done()
    preemptions.restart("worker")
    training.join()
    assert training.ended == training.begun == 4


def test_all_workers_are_lost(training: Training, preemptions: Preemptions) -> None:
    training.run_endlessly(10)
    for worker in range(2):
        preemptions.kill("worker", worker)
    eventually(lambda: training.coordinator.workers == [])
    assert not training.coordinator.done()
    preemptions.revive()
    training.join()
    assert training.ended == training.begun == 10


def test_a_worker_is_lost_again_and_again(training: Training, preemptions: Preemptions) -> None:
    training.run_endlessly(10)
    for _ in range(2):
        preemptions.kill("worker")
        eventually(lambda: training.coordinator.workers == [1])
        preemptions.start("worker")
        eventually(lambda: training.coordinator.workers == [0, 1])
    training.join()
    assert training.ended == training.begun == 10


def test_a_lost_worker_that_stays_away_keeps_nobody_waiting(
    training: Training, preemptions: Preemptions
) -> None:
    training.run_endlessly(10)
    preemptions.kill("worker")
    training.join()
    assert training.ended == training.begun == 10


def test_a_worker_that_is_stopped_for_less_than_its_lease_keeps_its_functions(
    training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    values = training.run_endlessly(2)
    with stopped(process_of("worker", 0)):
        time.sleep(2)
    training.join()
    assert training.ended == training.begun == 2
    processes = training.coordinator.fetch(values)
    assert sorted(processes) == sorted(process_of("worker", i) for i in range(2))
    assert "was lost" not in caplog.text


def test_what_a_worker_does_after_its_lease_does_not_count(
    training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    values = training.run_endlessly(2)
    with stopped(process_of("worker", 0)):
        eventually(lambda: training.coordinator.workers == [1])
        training.join()
        assert training.ended == training.begun == 2
    eventually(lambda: training.coordinator.workers == [0, 1])
    processes = training.coordinator.fetch(values)
    assert processes == [process_of("worker", 1)] * 2
    assert training.ended == training.begun == 2
    assert "nothing was heard of it for 1" in caplog.text


def test_a_worker_is_lost_when_a_function_has_failed(
    training: Training, preemptions: Preemptions
) -> None:
    coordinator = training.coordinator
    quick = [coordinator.schedule(torch.ones, args=(2,)) for _ in range(3)]
    endless = coordinator.schedule(wait_without_end)
    failing = coordinator.schedule(fail)
    with pytest.raises(ValueError, match="not positive"):
        failing.fetch()
    for value in quick:
        value.fetch()  # of its end the program may hear some milliseconds later
    for worker in range(2):
        preemptions.kill("worker", worker)
    with pytest.raises(ValueError, match="not positive"):
        coordinator.join()
    with pytest.raises(CancelledError, match="Please reschedule"):
        endless.fetch()
    assert [value.fetch().tolist() for value in quick] == [[1, 1]] * 3
    preemptions.start("worker", 1)
    quick = [coordinator.schedule(torch.ones, args=(2,)) for _ in range(3)]
    coordinator.join()
    assert [value.fetch().tolist() for value in quick] == [[1, 1]] * 3


@pytest.mark.parametrize("use_function", [True, False])
def test_a_worker_is_lost_while_datasets_are_made(
    training: Training, preemptions: Preemptions, use_function: bool
) -> None:
    with beside(lambda: preemptions.restart("worker")):
        for _ in range(2):
            training.schedule(3)
            training.rebuild_iterators(use_function)
        training.schedule(3)
        training.join()
    assert training.ended == training.begun == 9


def test_the_error_of_a_lost_worker_names_it(
    cluster: LocalCluster, preemptions: Preemptions
) -> None:
    resolver = cluster.cluster_resolver
    address = resolver.cluster_spec().task_address("worker", 0)
    link = link_to(address, token=resolver.cluster_token or "")
    link.connect()
    running = link.run(1, b"")
    assert running.exception() is not None, "the payload is no function"
    preemptions.kill("worker")
    with pytest.raises(WorkerLostError, match="/job:worker/task:0") as lost:
        link.run(2, b"").result()
    link.close()
    assert isinstance(lost.value, stratagem.UnavailableError)
    assert "/job:ps" not in str(lost.value)


def test_results_outlive_the_workers(training: Training, preemptions: Preemptions) -> None:
    iterations = training.iterations

    def neighbours() -> tuple[torch.Tensor, torch.Tensor]:
        value = iterations.read_value()
        return value + 1, value - 1

    fetched, kept = (training.coordinator.schedule(neighbours) for _ in range(2))
    assert fetched.fetch() == (1, -1)
    training.coordinator.join()
    for worker in range(2):
        preemptions.kill("worker", worker)
    eventually(lambda: training.coordinator.workers == [])
    assert fetched.fetch() == kept.fetch() == (1, -1)
    tensors = kept.get()
    assert [each.device.type for each in tensors] == ["cpu", "cpu"]
    assert [each.item() for each in tensors] == [1, -1]


def test_servers_are_read_while_a_worker_is_away(
    training: Training, preemptions: Preemptions
) -> None:
    preemptions.kill("worker")
    for rounds in range(3):
        training.run_endlessly(1, workers=1)
        assert training.ended == rounds
        training.join()
        assert training.ended == training.begun == rounds + 1
    preemptions.start("worker")
    eventually(lambda: training.coordinator.workers == [0, 1])


def test_a_worker_is_away_when_the_program_begins(
    cluster: LocalCluster, preemptions: Preemptions
) -> None:
    preemptions.kill("worker")
    with (
        beside(lambda: preemptions.start("worker")),
        ParameterServerStrategy(cluster.cluster_resolver) as strategy,
    ):
        training = Training(strategy)
        training.schedule(4)
        training.join()
        assert training.ended == training.begun == 4
        eventually(lambda: training.coordinator.workers == [0, 1])


def test_threads_end_with_the_coordinator(cluster: LocalCluster) -> None:
    def threads() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name.startswith("stratagem-")}

    before = threads()
    strategy = ParameterServerStrategy(cluster.cluster_resolver)
    coordinator = ClusterCoordinator(strategy, resolver_seconds=60.0)
    assert coordinator.schedule(torch.ones, args=(1,)).fetch() == 1
    assert len(threads() - before) > 2
    strategy.close()
    del coordinator, strategy
    gc.collect()
    eventually(lambda: threads() <= before)
