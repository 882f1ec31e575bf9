"""Clusters of threads and of processes: what runs, what fails, what comes back."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import grpc
import pytest
import torch

from stratagem import InvalidArgumentError, UnimplementedError
from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_proto.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidTypeError,
    UnavailableError,
    VariableNotFoundError,
)
from stratagem_proto.protocol import PROTOCOL_VERSION
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF, OpenSessionRequest
from stratagem_rpc.channel import open_channel
from tests.cluster.interventions import beside
from tests.deploy.processes.process_tree import is_alive, tasks
from tests.rpc_methods import parameter_server_method, prove
from tests.waiting import eventually

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def threads() -> Iterator[LocalCluster]:
    with LocalCluster(ps=2, workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def processes() -> Iterator[LocalCluster]:
    with LocalCluster(ps=2, workers=2, processes=True) as cluster:
        yield cluster


@pytest.fixture(params=["threads", "processes"])
def cluster(request: pytest.FixtureRequest) -> LocalCluster:
    """Each kind of cluster, running."""
    running: LocalCluster = request.getfixturevalue(request.param)
    return running


def address_of(cluster: LocalCluster, index: int) -> str:
    return cluster.cluster_resolver.cluster_spec().task_address("ps", index)


def listens(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionRefusedError:
        return False
    return True


def opens_session(address: str, token: str | None) -> bool:
    request = OpenSessionRequest(
        protocol_version=PROTOCOL_VERSION,
        session_id=os.urandom(16),
        role=ROLE_CHIEF,
    )
    with open_channel(address) as channel:
        try:
            prove(channel, token or "", "OpenSession", request, 30)
            parameter_server_method(channel, "OpenSession")(request, timeout=30)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            return False
    return True


def view(resolver: ClusterResolver, factor: int) -> dict[str, object]:
    return {
        "task": (resolver.task_type, resolver.task_id),
        "spec": resolver.cluster_spec().as_dict(),
        "token": resolver.cluster_token,
        "environment": [name for name in os.environ if name == "TF_CONFIG"],
        "process": os.getpid(),
        "tensor": torch.tensor([resolver.task_id or 0]) * factor,
    }


def process_id(resolver: ClusterResolver) -> int:
    return os.getpid()


def fail(resolver: ClusterResolver, index: int) -> None:
    if resolver.task_id == index:
        raise VariableNotFoundError("no server hosts 'x'", variable="x")


def hang_unless(resolver: ClusterResolver, index: int) -> None:
    if resolver.task_id == index:
        raise ValueError("the others need not wait")
    time.sleep(1000)


def die(resolver: ClusterResolver) -> NoReturn:
    print("last words", flush=True)
    os._exit(7)


def hang_the_first_time(resolver: ClusterResolver, folder: Path) -> str:
    been_here = folder / f"worker-{resolver.task_id}"
    if been_here.exists():
        return "done"
    been_here.touch()
    time.sleep(1000)
    return "unreachable"


def test_a_function_runs_once_per_worker_with_the_resolver_of_its_task(
    cluster: LocalCluster, request: pytest.FixtureRequest
) -> None:
    views = cluster.run(view, 10)
    assert [each["task"] for each in views] == [("worker", 0), ("worker", 1)]
    assert [each["tensor"].item() for each in views] == [0, 10]
    assert [each["environment"] for each in views] == [[], []]
    resolver = cluster.resolver("worker", 1)
    for each in views:
        assert each["spec"] == resolver.cluster_spec().as_dict()
        assert each["token"] == resolver.cluster_token
    own_processes = {each["process"] for each in views} - {os.getpid()}
    assert len(own_processes) == (2 if "processes" in request.node.name else 0)


def test_every_task_has_an_address_and_only_servers_listen(
    cluster: LocalCluster,
) -> None:
    spec = cluster.resolver("ps", 0).cluster_spec()
    assert (spec.num_tasks("ps"), spec.num_tasks("worker")) == (2, 2)
    assert all(listens(spec.task_address("ps", i)) for i in range(2))
    assert not any(listens(spec.task_address("worker", i)) for i in range(2))


def test_a_program_outside_of_the_workers_is_the_chief(cluster: LocalCluster) -> None:
    resolver = cluster.cluster_resolver
    assert (resolver.task_type, resolver.task_id) == ("chief", 0)
    assert resolver.cluster_spec().num_tasks("chief") == 1
    assert "chief" not in cluster.resolver("worker", 0).cluster_spec().jobs


def test_servers_admit_only_who_has_the_token(cluster: LocalCluster) -> None:
    address = address_of(cluster, 0)
    assert opens_session(address, cluster.cluster_resolver.cluster_token)
    assert not opens_session(address, "guessed")


def test_what_a_worker_raises_comes_back_with_its_name_and_traceback(
    cluster: LocalCluster,
) -> None:
    with pytest.raises(VariableNotFoundError, match="no server hosts 'x'") as raised:
        cluster.run(fail, 1)
    cause = raised.value.__cause__
    assert raised.value.variable == "x"
    assert isinstance(cause, AbortedError)
    assert cause.task == "/job:worker/task:1"
    assert "worker:1 failed" in str(cause)
    assert "in fail\n" in str(cause)


def test_the_first_failure_ends_the_other_worker_processes(
    processes: LocalCluster,
) -> None:
    before = tasks(os.getpid())
    with pytest.raises(ValueError, match="need not wait"):
        processes.run(hang_unless, 1)
    eventually(lambda: tasks(os.getpid()) <= before)


def test_a_worker_that_dies_is_named_with_its_last_words(
    processes: LocalCluster,
) -> None:
    with pytest.raises(AbortedError, match=r"worker:[01] ended with exit code 7") as e:
        processes.run(die)
    assert "last words" in str(e.value.__cause__)


def test_what_cannot_be_sent_to_a_process_is_refused(processes: LocalCluster) -> None:
    with pytest.raises(InvalidTypeError, match="cannot be sent to a process"):
        processes.run(view, threading.Lock())


def test_a_killed_worker_fails_the_run(processes: LocalCluster, tmp_path: Path) -> None:
    def kill() -> None:
        eventually(lambda: len(list(tmp_path.iterdir())) == 2)
        processes.kill("worker", 1)

    killed = "worker:1 ended with signal SIGKILL"
    with beside(kill), pytest.raises(AbortedError, match=killed):
        processes.run(hang_the_first_time, tmp_path)


def test_a_restarted_worker_begins_its_function_again(
    processes: LocalCluster, tmp_path: Path
) -> None:
    def restart() -> None:
        eventually(lambda: len(list(tmp_path.iterdir())) == 2)
        processes.restart("worker", 0)
        processes.restart("worker", 1)

    with beside(restart):
        assert processes.run(hang_the_first_time, tmp_path) == ["done", "done"]


@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_a_server_that_was_ended_comes_back_at_its_address(
    cluster: LocalCluster, ending: str
) -> None:
    address = address_of(cluster, 1)
    getattr(cluster, ending)("ps", 1)
    assert not listens(address)
    assert listens(address_of(cluster, 0))
    cluster.restart("ps", 1)
    assert address_of(cluster, 1) == address
    assert opens_session(address, cluster.cluster_resolver.cluster_token)


def test_a_server_outlives_the_thread_that_restarted_it(
    processes: LocalCluster,
) -> None:
    restart = threading.Thread(target=processes.restart, args=("ps", 0))
    restart.start()
    restart.join()
    token = processes.cluster_resolver.cluster_token
    assert opens_session(address_of(processes, 0), token)


@pytest.mark.parametrize("processes", [False, True])
def test_nothing_is_left_behind(
    processes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = tasks(os.getpid())
    with LocalCluster(ps=1, workers=1, processes=processes) as cluster:
        address = address_of(cluster, 0)
        children = tasks(os.getpid()) - before
        assert len(children) == (2 if processes else 0)
        assert len(list(tmp_path.glob("stratagem-*"))) == (1 if processes else 0)
        assert cluster.run(process_id)
    assert not any(map(is_alive, children))
    assert not list(tmp_path.glob("stratagem-*"))
    assert not listens(address)


def test_a_block_that_fails_leaves_nothing_behind_either() -> None:
    before = tasks(os.getpid())
    with (
        pytest.raises(ZeroDivisionError),
        LocalCluster(ps=1, workers=1, processes=True),
    ):
        raise ZeroDivisionError
    assert tasks(os.getpid()) <= before


def test_a_server_that_does_not_start_shows_the_end_of_its_log() -> None:
    before = tasks(os.getpid())
    with (
        pytest.raises(UnavailableError, match=r"ps:0 at .* exit code 2(.|\n)*lease"),
        LocalCluster(ps=1, processes=True, lease_seconds=-1.0),
    ):
        pass
    assert tasks(os.getpid()) <= before


def test_output_is_labelled_when_it_is_wanted(
    capfd: pytest.CaptureFixture[str],
) -> None:
    captured = "hello from"
    with LocalCluster(ps=1, workers=2, processes=True, show_output=True) as cluster:
        cluster.run(lambda resolver: print(captured, resolver.task_id))
    lines = capfd.readouterr().err.splitlines()
    assert "worker:0 | hello from 0" in lines
    assert "worker:1 | hello from 1" in lines
    assert any(line.startswith("ps:0 | ") and "serving" in line for line in lines)


@pytest.mark.parametrize("task", [("ps", 2), ("ps", -1), ("worker", 2), ("chief", 0)])
def test_a_task_that_does_not_exist_is_refused(
    threads: LocalCluster, task: tuple[str, int]
) -> None:
    with pytest.raises(InvalidArgumentError, match="no task"):
        threads.resolver(*task)
    with pytest.raises(InvalidArgumentError, match="it has 2 tasks of ps"):
        threads.kill(*task)


@pytest.mark.parametrize("verb", ["kill", "stop", "restart"])
def test_a_thread_is_no_process(threads: LocalCluster, verb: str) -> None:
    with pytest.raises(UnimplementedError, match=r"worker:1 is a thread .*processes="):
        getattr(threads, verb)("worker", 1)


@pytest.mark.parametrize("verb", ["kill", "stop", "restart"])
def test_a_worker_without_a_function_has_no_process(processes: LocalCluster, verb: str) -> None:
    with pytest.raises(FailedPreconditionError, match="worker:1 has no process now"):
        getattr(processes, verb)("worker", 1)


def test_a_team_runs_one_function_at_a_time(threads: LocalCluster) -> None:
    inside, done = threading.Event(), threading.Event()

    def wait(resolver: ClusterResolver) -> None:
        inside.set()
        done.wait()

    with beside(lambda: threads.run(wait)):
        inside.wait()
        with pytest.raises(FailedPreconditionError, match="running a function already"):
            threads.run(process_id)
        done.set()


def test_a_cluster_lives_from_start_to_close() -> None:
    cluster = LocalCluster(ps=1, workers=1)
    assert cluster.start() is cluster
    address = address_of(cluster, 0)
    with pytest.raises(FailedPreconditionError, match=r"started before; call close\(\)"):
        cluster.start()
    assert listens(address)
    cluster.close()
    assert not listens(address)
    cluster.close()
    with pytest.raises(FailedPreconditionError, match=r"start\(\) and close\(\)"):
        cluster.run(process_id)
    with cluster.start():
        assert len(cluster.run(process_id)) == 1


def test_the_failure_of_one_thread_ends_the_others(threads: LocalCluster) -> None:
    others: list[threading.Thread] = []

    def fail(resolver: ClusterResolver) -> None:
        if resolver.task_id == 1:
            others.append(threading.current_thread())
            while True:
                pass
        eventually(lambda: bool(others))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        threads.run(fail)
    eventually(lambda: not others[0].is_alive())
    assert len(threads.run(process_id)) == 2


def test_a_failure_does_not_keep_what_its_function_had(threads: LocalCluster) -> None:
    gone = threading.Event()

    def fail(resolver: ClusterResolver) -> None:
        held = threading.local()
        weakref.finalize(held, gone.set)
        try:
            raise KeyError
        except KeyError:
            raise ZeroDivisionError from None

    with pytest.raises(ZeroDivisionError) as kept:
        threads.run(fail)
    gc.collect()
    assert gone.is_set()
    assert "in fail" in str(kept.value.__cause__)


@pytest.mark.parametrize(("ps", "workers"), [(0, 0), (-1, 2), (1, -1)])
def test_a_cluster_of_nobody_is_refused(ps: int, workers: int) -> None:
    with pytest.raises(InvalidArgumentError, match="at least one of them"):
        LocalCluster(ps, workers)


def test_workers_can_do_without_servers() -> None:
    with LocalCluster(ps=0, workers=2) as cluster:
        jobs = cluster.run(lambda resolver: resolver.cluster_spec().jobs)
    assert jobs == [["worker"], ["worker"]]


def test_a_cluster_that_does_not_run_says_so() -> None:
    cluster = LocalCluster()
    with pytest.raises(FailedPreconditionError, match="use it inside `with"):
        cluster.run(process_id)
    with pytest.raises(FailedPreconditionError, match="use it inside `with"):
        _ = cluster.cluster_resolver
