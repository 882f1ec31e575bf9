"""Local clusters whose workers serve a coordinator."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch

import stratagem
from stratagem_deploy import LocalCluster
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    WorkerLostError,
)
from tests.worker.links import link_to, result


def run_on(cluster: LocalCluster, task: int) -> int:
    """The process that runs a function on a worker of the cluster."""
    return result_on(cluster, task, os.getpid)


_Result = TypeVar("_Result")


def result_on(cluster: LocalCluster, task: int, function: Callable[[], _Result]) -> _Result:
    """What a function returns on a worker of the cluster."""
    resolver = cluster.cluster_resolver
    address = resolver.cluster_spec().task_address("worker", task)
    link = link_to(address, token=resolver.cluster_token or "", task=task)
    link.connect()
    try:
        found: _Result = result(link, 1, function)
        return found
    finally:
        link.close()


def test_workers_serve_in_this_process() -> None:
    with LocalCluster(ps=1, worker_servers=2) as cluster:
        assert [run_on(cluster, task) for task in range(2)] == [os.getpid()] * 2
        spec = cluster.cluster_resolver.cluster_spec()
        assert [spec.num_tasks(job) for job in ("chief", "ps", "worker")] == [1, 1, 2]


def test_a_worker_in_this_process_can_be_stopped_and_started_again() -> None:
    with LocalCluster(ps=0, worker_servers=1) as cluster:
        cluster.kill("worker", 0)
        cluster.restart("worker", 0)
        assert run_on(cluster, 0) == os.getpid()


def test_a_worker_can_be_added_while_the_cluster_runs() -> None:
    with LocalCluster(ps=1, worker_servers=1) as cluster:
        address = cluster.add_worker_server()
        spec = cluster.cluster_resolver.cluster_spec()
        assert spec.task_address("worker", 1) == address
        assert run_on(cluster, 1) == os.getpid()
        cluster.kill("worker", 1)
        cluster.restart("worker", 1)
        assert run_on(cluster, 1) == os.getpid()


def test_a_cluster_says_what_it_consists_of() -> None:
    with LocalCluster(ps=2, worker_servers=1) as cluster:
        assert repr(cluster) == "<LocalCluster running: 2 ps, 1 workers>"
        cluster.add_worker_server()
        assert repr(cluster) == "<LocalCluster running: 2 ps, 2 workers>"
    assert repr(cluster) == "<LocalCluster stopped: 2 ps, 2 workers>"


def test_a_worker_is_added_to_others_that_serve_alone() -> None:
    with (
        LocalCluster(ps=0, workers=1) as cluster,
        pytest.raises(InvalidArgumentError, match="not for both"),
    ):
        cluster.add_worker_server()


def order_of_a_set() -> list[str]:
    return list({str(number) for number in range(100)})


@pytest.mark.cluster
def test_sets_have_one_order_in_all_worker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with LocalCluster(ps=0, worker_servers=2, processes=True) as cluster:
        orders = [result_on(cluster, worker, order_of_a_set) for worker in range(2)]
    with LocalCluster(ps=0, workers=2, processes=True) as cluster:
        orders += cluster.run(lambda resolver: order_of_a_set())
    assert orders == orders[:1] * 4


def wait_policy() -> str:
    return os.environ["OMP_WAIT_POLICY"]


@pytest.mark.cluster
def test_worker_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with LocalCluster(ps=0, worker_servers=2, processes=True) as cluster:
        threads = result_on(cluster, 1, torch.get_num_threads)
        assert result_on(cluster, 1, wait_policy) == "PASSIVE"
    assert threads == max(1, (os.cpu_count() or 1) // 2)


@pytest.mark.cluster
def test_workers_serve_in_processes_and_come_back_after_a_kill(
    capfd: pytest.CaptureFixture[str],
) -> None:
    cluster = LocalCluster(ps=1, worker_servers=2, processes=True, show_output=True)
    with cluster:
        first, second = (run_on(cluster, task) for task in range(2))
        assert len({first, second, os.getpid()}) == 3
        cluster.kill("worker", 1)
        with pytest.raises(ProcessLookupError):
            os.kill(second, signal.SIGCONT)
        cluster.restart("worker", 1)
        assert run_on(cluster, 1) not in (first, second)
        cluster.add_worker_server()
        assert run_on(cluster, 2) not in (first, second, run_on(cluster, 1))
    shown = capfd.readouterr().err
    assert "worker:1 | " in shown


def test_calls_need_other_workers() -> None:
    with (
        LocalCluster(ps=0, worker_servers=1) as cluster,
        pytest.raises(FailedPreconditionError, match="serve a coordinator"),
    ):
        cluster.run(os.getpid)


def test_calls_need_workers() -> None:
    with (
        LocalCluster(ps=1, workers=0) as cluster,
        pytest.raises(FailedPreconditionError, match="no workers that could make calls"),
    ):
        cluster.run(os.getpid)


def test_workers_are_of_one_kind() -> None:
    with pytest.raises(InvalidArgumentError, match="not for both"):
        LocalCluster(ps=1, workers=1, worker_servers=1)


def test_the_error_of_a_lost_worker_is_public() -> None:
    assert stratagem.WorkerLostError is WorkerLostError
    assert issubclass(WorkerLostError, ConnectionError)
