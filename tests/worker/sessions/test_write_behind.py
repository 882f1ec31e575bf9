"""Functions that do not wait for their small writes, and how these end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch

from stratagem import ParameterServerStrategy, Variable
from stratagem._core.waiting import Guard, guarded_by
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.pending import Pending
from stratagem._ps_client.requests.variables import delete
from stratagem._ps_client.socket_transport import SocketTransport
from stratagem._ps_client.write_behind import Backlog, WritesBehind
from stratagem._worker_client.link import WorkerLink
from stratagem._worker_client.wire import ClosureFailure
from stratagem_proto.errors import VariableNotFoundError
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import AUTO, GRPC, TCP, TRANSPORT_VARIABLE
from stratagem_worker.functions import Interrupted
from stratagem_worker.server import WorkerServer
from tests.client.clusters import Cluster, running
from tests.conftest import TOKEN
from tests.full import a_few
from tests.waiting import eventually
from tests.worker.links import PATIENCE, connected, loaded, payload_of

entered = threading.Event()
gate = threading.Event()
second_gate = threading.Event()
variables: list[Variable] = []


@pytest.fixture(autouse=True, params=[AUTO, TCP, GRPC])
def strategy(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ParameterServerStrategy]:
    """A strategy in the worker's process, with a variable on each of two servers."""
    monkeypatch.setenv(TRANSPORT_VARIABLE, request.param)
    entered.clear()
    gate.clear()
    second_gate.clear()
    with running(num_servers=2) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            variables[:] = [Variable(torch.zeros(2)) for _ in range(2)]
        yield strategy


def increment() -> None:
    for variable in variables:
        variable.assign_add(torch.ones(2))


def increment_and_look() -> list[float]:
    increment()
    return [variable.numpy()[0].item() for variable in variables]


def nothing() -> None:
    pass


def wait_at_gate() -> None:
    entered.set()
    assert gate.wait(PATIENCE)


def write_and_wait() -> None:
    increment()
    entered.set()
    assert second_gate.wait(PATIENCE)


class Patient:
    """Lets every write wait for others."""

    def keeps(self, backlog: Backlog) -> bool:
        return True


class Interrupting:
    """Interrupts a function while one of its writes is on its way."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def keeps(self, backlog: Backlog) -> bool:
        self._guard.strike(lambda: pytest.fail("the write was not held off"))
        return True


def record_of_keeping(backlog: Backlog) -> list[bool]:
    """What is said from now on of whether writes wait."""
    seen: list[bool] = []
    keep = backlog._keep

    def recorded(pending: Pending[Any]) -> None:
        keep(pending)
        seen.append(backlog.keeps_since(time.monotonic()))

    backlog._keep = recorded  # type: ignore[method-assign]
    return seen


def spin_behind_a_write() -> None:
    increment()
    entered.set()
    while True:
        variables[0].numpy()


def run_all(link: WorkerLink, functions: list[Callable[[], object]]) -> list[object]:
    """Sends functions all at once; what each returns, or how it fails."""
    ends = [link.run(number, payload_of(function)) for number, function in enumerate(functions, 1)]
    results = [end.exception(PATIENCE) or end.result() for end in ends]
    return [each if isinstance(each, BaseException) else loaded(each.payload) for each in results]


def values() -> list[float]:
    return [variable.numpy()[0].item() for variable in variables]


def servers_of(strategy: ParameterServerStrategy) -> ServerGroup:
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    return extended._store.servers


def cut_off(strategy: ParameterServerStrategy) -> None:
    """Breaks the connections that pipelined calls go over, if they do."""
    for connection in servers_of(strategy)._connections:
        local = connection.route.transport._chosen
        if isinstance(local, SocketTransport) and local._pipeline is not None:
            local._pipeline.break_off()


def test_the_writes_of_many_functions_are_applied_once_each(link: WorkerLink) -> None:
    assert run_all(link, [increment] * 100) == [None] * 100
    assert values() == [100.0, 100.0]


def test_a_function_reads_what_it_and_those_before_have_written(
    link: WorkerLink,
) -> None:
    ends = run_all(link, [increment, increment_and_look] * 5)
    assert ends[1::2] == [[2.0 * n, 2.0 * n] for n in range(1, 6)]


def test_a_write_that_fails_fails_its_function_and_says_where(
    link: WorkerLink, strategy: ParameterServerStrategy
) -> None:
    servers_of(strategy).call(1, delete([variables[1].name]))
    good, bad = run_all(link, [nothing, increment])
    assert good is None
    assert isinstance(bad, ClosureFailure)
    assert isinstance(bad.exception, VariableNotFoundError)
    assert "variable.assign_add(torch.ones(2))" in bad.traceback
    assert "closure.py" not in bad.traceback


def test_the_end_of_a_function_does_not_wait_for_the_next_one(link: WorkerLink) -> None:
    first = link.run(1, payload_of(increment))
    second = link.run(2, payload_of(wait_at_gate))
    assert entered.wait(PATIENCE)
    first.result(PATIENCE)
    assert not second.done()
    gate.set()
    second.result(PATIENCE)


def test_a_function_that_is_given_up_gives_up_no_writes_of_others(
    link: WorkerLink,
) -> None:
    first = link.run(1, payload_of(increment))
    second = link.run(2, payload_of(spin_behind_a_write))
    assert entered.wait(PATIENCE)
    link.cancel(2, interrupt=True)
    first.result(PATIENCE)
    with pytest.raises(ClosureFailure, match="given up"):
        second.result(PATIENCE)
    assert values() == [2.0, 2.0]


def test_a_write_whose_function_is_given_up_meanwhile_is_waited_for(
    strategy: ParameterServerStrategy,
) -> None:
    guard = Guard(Interrupted)
    writes = WritesBehind(Interrupting(guard))
    with pytest.raises(Interrupted), guarded_by(guard), writes:
        increment()
    writes.wait()
    assert servers_of(strategy).steps.current == 0
    assert values() == [1.0, 0.0]


def test_writes_that_are_cut_off_are_applied_once(
    strategy: ParameterServerStrategy,
) -> None:
    functions = [WritesBehind() for _ in range(3)]
    for number, writes in enumerate(functions):
        with writes:
            increment()
        if number == 1:
            cut_off(strategy)
    for writes in functions:
        writes.wait()
        assert writes.has_outcome
        assert writes.failed is None
    assert values() == [3.0, 3.0]


@a_few("cuts", [False, True], "requests are repeated by the session, which has tests of its own")
def test_writes_that_wait_for_others_are_applied_once_before_they_are_looked_at(
    strategy: ParameterServerStrategy, cuts: bool
) -> None:
    functions = [WritesBehind(Patient()) for _ in range(20)]
    for writes in functions:
        with writes:
            increment()
    if cuts:
        cut_off(strategy)
    assert values() == [20.0, 20.0]
    assert all(writes.has_outcome and writes.failed is None for writes in functions)


def test_what_a_function_wrote_is_sent_while_it_runs_on(
    link: WorkerLink, strategy: ParameterServerStrategy
) -> None:
    first = link.run(1, payload_of(wait_at_gate))
    assert entered.wait(PATIENCE)
    entered.clear()
    backlog = servers_of(strategy)._backlog
    seen = record_of_keeping(backlog)
    others = [link.run(2, payload_of(write_and_wait)), link.run(3, payload_of(nothing))]
    gate.set()
    assert entered.wait(PATIENCE)
    eventually(lambda: not backlog.keeps_since(time.monotonic()))
    assert True in seen
    assert not others[0].done()
    second_gate.set()
    for end in (first, *others):
        end.result(PATIENCE)
    assert values() == [1.0, 1.0]


def test_what_is_not_waited_for_is_one_step_until_it_is_settled(
    strategy: ParameterServerStrategy,
) -> None:
    steps, writes = servers_of(strategy).steps, WritesBehind()
    with writes:
        increment()
        begun = steps.current
        increment()
    assert steps.current == begun > 0
    writes.wait()
    assert steps.current == 0
    assert steps.finished_step().step == begun


def test_a_tensor_may_change_once_it_is_written(
    strategy: ParameterServerStrategy,
) -> None:
    writes, ones = WritesBehind(), torch.ones(2)
    with writes:
        variables[0].assign_add(ones)
    ones.zero_()
    cut_off(strategy)
    writes.wait()
    assert values() == [1.0, 0.0]


class Lonely(NamedTuple):
    """A strategy that waits for its only server for longer than any test."""

    server: ParameterServer
    strategy: ParameterServerStrategy

    def lose_server(self) -> None:
        """Ends the server, and waits until the function waits for it, or spins."""
        self.server.stop(grace=0)
        gate.set()
        awaiting = servers_of(self.strategy)._backlog._awaiting
        eventually(lambda: awaiting.locked() or second_gate.is_set())


@pytest.fixture
def lonely() -> Iterator[Lonely]:
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        Cluster([server.address], num_workers=1).strategy(
            connect_seconds=100 * PATIENCE
        ) as strategy,
    ):
        with strategy.scope():
            variables[:] = [Variable(torch.zeros(2))]
        yield Lonely(server, strategy)


def write_and_read() -> None:
    write_at_gate()
    variables[0].numpy()


def write_at_gate() -> None:
    wait_at_gate()
    increment()


def write_and_spin() -> None:
    write_at_gate()
    second_gate.set()
    while True:
        time.sleep(0.001)


@a_few(
    "function",
    [write_at_gate, write_and_read, write_and_spin],
    "a function is given up wherever it stands",
)
def test_a_function_that_is_given_up_waits_for_no_server_that_is_away(
    link: WorkerLink, lonely: Lonely, function: Callable[[], None]
) -> None:
    end = link.run(1, payload_of(function))
    assert entered.wait(PATIENCE)
    lonely.lose_server()
    link.cancel(1, interrupt=True)
    with pytest.raises(ClosureFailure):
        end.result(PATIENCE / 2)


def test_the_end_of_a_session_waits_for_no_server_that_is_away(
    worker: WorkerServer, lonely: Lonely
) -> None:
    with connected(worker) as lost:
        lost.run(1, payload_of(write_and_read))
        assert entered.wait(PATIENCE)
        lonely.lose_server()
    with connected(worker) as other:
        end = other.run(1, payload_of(nothing))
        assert not end.result(PATIENCE / 2).staying_bytes
