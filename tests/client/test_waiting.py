"""What the log says of waits for others, wherever the client waits."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stratagem import (
    ClusterSpec,
    CommunicationOptions,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    Variable,
)
from stratagem._core import waiting
from stratagem._core.waiting import Wait
from stratagem._multi_worker import meeting
from stratagem._multi_worker.group import WorkerGroup
from stratagem._multi_worker.meeting import WorkerPlace
from stratagem._tpu.session import connected
from stratagem.cluster_resolver import ClusterResolver, SimpleClusterResolver
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_proto.errors import StratagemError, UnavailableError
from stratagem_rpc.channel import Deadlines
from tests.client.clusters import Cluster
from tests.client.coordinator.coordination import coordinating, new_resolver
from tests.client.coordinator.here import Gate
from tests.conftest import TOKEN
from tests.waiting import eventually

CLOCK = r"\d\d:\d\d:\d\d"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lines that come at once, and of no waits of tests before."""
    monkeypatch.setattr(waiting, "_teller", _quiet(waiting._teller))
    monkeypatch.setattr(waiting, "_FIRST_SECONDS", 0.05)
    monkeypatch.setattr(waiting, "_NEXT_SECONDS", 0.05)
    yield
    _quiet(waiting._teller)


def _quiet(teller: waiting._Teller) -> waiting._Teller:
    """Lets a thread say nothing more, and returns what tells of other waits."""
    for wait in [*teller._waits]:
        wait.end()
    return waiting._Teller()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The lines of waits so far."""

    def found() -> list[str]:
        records = [one for one in caplog.records if vars(one).get("event") == "waiting"]
        return [record.getMessage() for record in records]

    return found


@pytest.fixture
def unused_address() -> Iterator[str]:
    """Where nobody listens, and nobody else will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def beside(function: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Runs a function in another thread, and waits for its end."""
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit(function)


def test_a_line_says_who_waits_for_whom_since_and_until_when(
    lines: Callable[[], list[str]],
) -> None:
    with Wait("/job:worker/task:1", "somebody at nowhere:1", 60):
        eventually(lambda: len(lines()) > 1)
    first, second = lines()[:2]
    text = "/job:worker/task:1 waits for somebody at nowhere:1 since "
    assert first.startswith(text)
    assert second.startswith(text)
    assert ", until " in first


def test_waits_alike_are_told_of_once(
    lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_NEXT_SECONDS", 600.0)
    with Wait("me", "you"), Wait("me", "you"), Wait("me", "them"):
        eventually(lambda: any("them" in line for line in lines()))
    assert sum("you" in line for line in lines()) == 1


def test_a_wait_that_is_dropped_is_over(lines: Callable[[], list[str]]) -> None:
    def interrupted() -> None:
        Wait("me", "nobody").begin()

    interrupted()
    with Wait("me", "somebody"):
        eventually(lambda: len(lines()) > 1)
    assert not any("nobody" in line for line in lines())


def test_a_thread_is_there_only_while_somebody_waits(
    lines: Callable[[], list[str]],
) -> None:
    with Wait("me", "you"):
        eventually(lambda: bool(lines()))
    thread = waiting._teller._thread
    eventually(lambda: thread is None or not thread.is_alive())
    with Wait("me", "them"):
        eventually(lambda: any("them" in line for line in lines()))


def test_of_a_server_that_is_absent(lines: Callable[[], list[str]], unused_address: str) -> None:
    cluster = Cluster([unused_address], 2)
    with cluster.strategy(1, connect_seconds=20) as strategy:

        def make() -> None:
            with suppress(StratagemError), strategy.scope():
                Variable(1.0)

        with beside(make):
            eventually(lambda: any("The last attempt: " in line for line in lines()))
            strategy.close()
    expected = f"/job:worker/task:1 waits for /job:ps/task:0 at {unused_address} since "
    assert any(
        line.startswith(expected)
        and "Connection refused" in line.partition("The last attempt: ")[2]
        for line in lines()
    )


def test_of_a_server_that_accepts_and_says_nothing(
    lines: Callable[[], list[str]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        cluster = Cluster([address], 2)
        with cluster.strategy(1, connect_seconds=20) as strategy:

            def make() -> None:
                with suppress(StratagemError), strategy.scope():
                    Variable(1.0)

            with beside(make):
                eventually(lambda: bool(lines()))
                strategy.close()
    assert any(f"waits for /job:ps/task:0 at {address}" in line for line in lines())


def test_of_a_chief_that_has_not_created_the_variables(
    lines: Callable[[], list[str]], cluster: Cluster
) -> None:
    def attach() -> None:
        with cluster.strategy(1) as worker, worker.scope():
            Variable(1.0, name="first")

    with beside(attach) as attached:
        eventually(lambda: bool(lines()))
        with cluster.strategy(0) as chief, chief.scope():
            Variable(1.0, name="first")
            attached.result(60)
    expected = (
        "/job:worker/task:1 waits for the chief, /job:worker/task:0 at "
        "worker0.test:1, to create 'first' since "
    )
    assert any(line.startswith(expected) for line in lines())


def test_of_a_chief_that_has_not_restored(
    lines: Callable[[], list[str]], cluster: Cluster, tmp_path: Path
) -> None:
    alone = OneDeviceStrategy("CPU:0")
    with alone.scope():
        first = Variable(1.0, name="first")
    alone.save(tmp_path / "saved")
    assert first.numpy() == 1.0
    with cluster.strategy(0) as chief, cluster.strategy(1) as worker:
        for strategy in (chief, worker):
            with strategy.scope():
                Variable(1.0, name="first")
        with beside(lambda: worker.restore(tmp_path / "saved")):
            eventually(lambda: any("to restore" in line for line in lines()))
            chief.restore(tmp_path / "saved")
    assert any(
        line.startswith("/job:worker/task:1 waits for the chief to restore '") for line in lines()
    )


def test_of_a_barrier_at_which_somebody_is_missing(
    lines: Callable[[], list[str]], cluster: Cluster
) -> None:
    with (
        cluster.strategy(0) as chief,
        cluster.strategy(1) as worker,
        beside(lambda: chief.barrier("end")),
    ):
        expected = (
            "/job:worker/task:0 waits for the other workers at the barrier 'end', at "
            f"/job:ps/task:0 at {cluster.servers[0]} since "
        )
        eventually(lambda: any(line.startswith(expected) for line in lines()))
        worker.barrier("end")


def test_of_workers_of_a_coordinator(lines: Callable[[], list[str]], unused_address: str) -> None:
    def with_nobody(cluster: ClusterSpec) -> ClusterResolver:
        workers = [*map(str, cluster.job_tasks("worker")), unused_address]
        return new_resolver(ClusterSpec({**cluster.as_dict(), "worker": workers}))

    expected = f"the coordinator waits for /job:worker/task:1 at {unused_address} since"
    with coordinating(num_workers=1, resolver=with_nobody):
        eventually(lambda: any(line.startswith(expected) for line in lines()))
    found = [line for line in lines() if line.startswith(expected)]
    assert found[0].endswith("for as long as it takes")


def test_of_worker_servers_of_a_strategy_over_hosts(
    lines: Callable[[], list[str]], unused_address: str
) -> None:
    with pytest.raises(UnavailableError):
        connected([(1, unused_address)], "worker", TOKEN, Deadlines(connect=0.5))
    expected = f"this program waits for /job:worker/task:1 at {unused_address} since "
    assert any(line.startswith(expected) for line in lines())


def test_of_functions_that_do_not_end(lines: Callable[[], list[str]]) -> None:
    gate = Gate()
    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        value = coordinator.schedule(gate.pass_through)
        gate.wait_for()
        with beside(coordinator.join), beside(lambda: coordinator.fetch(value)):
            eventually(lambda: any("the value of" in line for line in lines()))
            eventually(lambda: any("all functions" in line for line in lines()))
            gate.open()
    for subject in ("the end of all functions", "the value of 'Gate.pass_through'"):
        expected = (
            rf"the coordinator waits for {subject} since {CLOCK} \(\d+ s\), for as long as it "
            r"takes\. Missing: the end of 'Gate\.pass_through' of /job:worker/task:0 \(\d+\.\d s\)"
        )
        assert any(re.fullmatch(expected, line) for line in lines())


def test_of_a_worker_that_does_not_take_part_in_a_collective(
    lines: Callable[[], list[str]],
) -> None:
    with ReservedAddress() as address:
        first, second = (
            WorkerGroup(WorkerPlace(("first", "second"), n, str(address), n == 0), 60.0, [])
            for n in (0, 1)
        )
        with beside(lambda: second.agree("The start", [])) as start:
            first.agree("The start", [])
            start.result()
        with beside(lambda: first.agree("What comes next", [])) as alone:
            expected = f"first waits for second to take part in an operation, at {address} since "
            eventually(lambda: any(line.startswith(expected) for line in lines()))
            second.agree("What comes next", [])
            alone.result()


def with_two_workers(chief: str, task: int) -> None:
    """One of two workers without servers, of which the other is absent."""
    spec = ClusterSpec({"worker": [chief, "127.0.0.1:1"]})
    resolver = SimpleClusterResolver(spec, task_type="worker", task_id=task)
    options = CommunicationOptions(timeout_seconds=1.0)
    strategy = MultiWorkerMirroredStrategy(resolver, options)
    with pytest.raises(StratagemError), strategy.scope():
        Variable(1.0)


def test_of_the_chief_of_workers_without_servers(
    lines: Callable[[], list[str]], unused_address: str
) -> None:
    with_two_workers(unused_address, task=1)
    assert lines()[0].startswith(
        "/job:worker/replica:0/task:1 waits for /job:worker/replica:0/task:0 at "
        f"{unused_address}, where the workers meet since "
    )


def test_of_the_others_of_workers_without_servers(
    lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "_REPORT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        chief = f"127.0.0.1:{free.getsockname()[1]}"
    with_two_workers(chief, task=0)
    expected = (
        f"/job:worker/replica:0/task:0 waits for /job:worker/replica:0/task:1, at {chief} since "
    )
    assert any(line.startswith(expected) for line in lines())
