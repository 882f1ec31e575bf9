"""What a function has changed is not changed again when it runs again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from stratagem import FailedPreconditionError, ParameterServerStrategy, Variable
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._ps_client.names import running as running_closure
from stratagem._ps_client.requests.coordination import end_closures
from stratagem_proto.errors import ResourceExhaustedError, VariableNotFoundError
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.clusters import Cluster, running
from tests.client.connections import add, connected, make, value_of
from tests.client.shipping.repeated_runs import (
    ROWS,
    SPACE,
    Overlapping,
    Program,
    Run,
    State,
    identity,
    state_of,
    strategy_of,
)
from tests.conftest import TOKEN
from tests.full import a_few

WORKERS = 2
STEPS = 7
LARGE = 300_000


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(num_servers=2, num_workers=WORKERS) as cluster:
        yield cluster


@pytest.fixture
def programs(cluster: Cluster) -> Iterator[list[Program]]:
    """Of each worker."""
    with ExitStack() as stack:
        strategies = [strategy_of(cluster, worker) for worker in range(WORKERS)]
        yield [Program(stack.enter_context(one)) for one in strategies]


@pytest.fixture(scope="module")
def undisturbed() -> State:
    """What variables have where the function runs once."""
    with running(num_servers=2) as cluster, strategy_of(cluster, 0) as strategy:
        Run(Program(strategy)).finish()
        return state_of(cluster)


@pytest.mark.spec("COO-8")
@a_few("done", [0, 2, 4, STEPS], "it has come somewhere, and to neither end", 2)
def test_a_function_goes_on_where_a_lost_worker_has_come_to(
    cluster: Cluster, programs: list[Program], undisturbed: State, done: int
) -> None:
    """And what the lost one still sends afterwards changes nothing."""
    lost, again = map(Run, programs[:2])
    for _ in range(done):
        lost.go_on()
    again.finish()
    assert state_of(cluster) == undisturbed
    lost.finish()
    assert state_of(cluster) == undisturbed


@pytest.mark.spec("COO-8")
def test_a_step_that_has_come_to_one_server_comes_to_the_other(
    programs: list[Program],
) -> None:
    """A write of two shards, which the first run is lost in the midst of."""
    lost, again = programs[0].divided, programs[1].divided
    before = lost.numpy()
    with running_closure(identity()):
        lost.variables[0].assign_add(torch.ones(ROWS // 2, 2))
    for _ in range(2):
        with running_closure(identity()):
            again.assign_add(torch.ones(ROWS, 2))
    assert (lost.numpy() == before + 1).all()


def test_gradients_that_come_before_their_step_belong_to_no_run(
    cluster: Cluster,
) -> None:
    """They are kept for the session that sends them, and each run sends them again."""
    with ExitStack() as stack:
        overlapping = [
            Overlapping(stack.enter_context(cluster.strategy(worker))) for worker in range(WORKERS)
        ]
        for number, expected in ((1, -1.0), (2, -2.0)):
            for worker in overlapping:
                with running_closure(identity(number)):
                    worker.step()
            assert set(overlapping[0].weights) == {expected}


@pytest.mark.spec("COO-8")
@pytest.mark.parametrize("seed", range(2))
def test_runs_of_a_function_may_overlap_in_any_way(
    cluster: Cluster, programs: list[Program], seed: int
) -> None:
    """Each step is of one of them, though of values that others may have changed."""
    runs, choice = [Run(program) for program in programs], random.Random(seed)
    while left := [run for run in runs if not run.over]:
        choice.choice(left).go_on()
    versions = {name: version for name, (version, _) in state_of(cluster).items()}
    assert (versions["here"], versions["there"]) == (3, 3)
    assert programs[0].here.numpy() == 10
    assert programs[0].there.numpy() == 7


def test_one_of_two_runs_that_come_at_the_same_time_is_applied(
    cluster: Cluster,
) -> None:
    """Such a large one is applied beside the event loop, so that both meet."""
    with ThreadPoolExecutor(WORKERS) as threads, ExitStack() as stack:
        strategies = [stack.enter_context(cluster.strategy(worker)) for worker in range(WORKERS)]
        copies = [_large(strategy) for strategy in strategies]

        def add_thrice(copy: Variable) -> None:
            with running_closure(identity()):
                for _ in range(3):
                    copy.assign_add(torch.ones(LARGE))

        list(threads.map(add_thrice, copies))
        assert torch.equal(copies[0].read_value(), torch.full((LARGE,), 3.0))


def _large(strategy: ParameterServerStrategy) -> Variable:
    with strategy.scope():
        return Variable(torch.zeros(LARGE), name="large")


@pytest.mark.spec("COO-8")
def test_nothing_of_a_function_is_applied_once_it_has_ended(
    cluster: Cluster, programs: list[Program]
) -> None:
    lost, again = map(Run, programs[:2])
    lost.go_on()
    again.finish()
    before = state_of(cluster)
    _end(cluster, 1)
    with pytest.raises(FailedPreconditionError, match=r"function 1 of .* has ended"):
        lost.finish()
    assert state_of(cluster) == before


def _end(cluster: Cluster, through: int) -> None:
    with cluster.strategy() as strategy:
        extended = strategy.extended
        assert isinstance(extended, ParameterServerExtended)
        extended._store.servers.on_all(lambda: end_closures(SPACE, through, ()))


def test_a_function_that_does_something_else_the_next_time_is_refused(
    programs: list[Program],
) -> None:
    with running_closure(identity()):
        programs[0].here.assign_add(1.0)
    different = pytest.raises(FailedPreconditionError, match=r"was Assign of 'here'.*all")
    with running_closure(identity()), different:
        programs[1].divided.assign_add(torch.ones(ROWS, 2))
    with running_closure(identity()):
        programs[1].here.assign_add(1.0)
    assert programs[0].here.numpy() == 2


def test_an_error_is_the_answer_to_every_run(server: ParameterServer) -> None:
    one = torch.ones(2)
    with connected(server.address) as lost, connected(server.address) as other:
        with running_closure(identity()), pytest.raises(VariableNotFoundError):
            add(lost, "v", one)
        make(other, "v", one)
        with running_closure(identity()):
            with pytest.raises(VariableNotFoundError):
                add(other, "v", one)
            add(other, "v", one)
        assert torch.equal(value_of(other, "v", one), one * 2)


def test_an_error_that_passes_is_no_answer() -> None:
    one, large = torch.ones(2), torch.ones(LARGE)
    with (
        ParameterServer(ServerSettings(token=TOKEN, staged_bytes=1 << 20)) as server,
        connected(server.address) as lost,
        connected(server.address) as other,
    ):
        make(other, "v", one)
        with running_closure(identity()), pytest.raises(ResourceExhaustedError):
            add(lost, "v", large)
        with running_closure(identity()):
            add(other, "v", one)
        assert torch.equal(value_of(other, "v", one), one * 2)


@a_few("done", [2, 4], "one count is as good as another")
def test_a_checkpoint_knows_how_far_a_function_has_come(
    tmp_path: Path, undisturbed: State, done: int
) -> None:
    with running(num_servers=2) as cluster, strategy_of(cluster, 0) as strategy:
        lost = Run(Program(strategy))
        for _ in range(done):
            lost.go_on()
        strategy.save(tmp_path).result()
        # What is not in the checkpoint is not there to be recognised either.
        lost.finish()
    with ExitStack() as stack:
        servers = [
            ServerSettings(task=task, token=TOKEN, restore=str(tmp_path)) for task in range(2)
        ]
        started = [stack.enter_context(ParameterServer(one)) for one in servers]
        again = Cluster([server.address for server in started], 1)
        Run(Program(stack.enter_context(strategy_of(again, 0)))).finish()
        assert _values(state_of(again)) == _values(undisturbed)


def _values(state: State) -> dict[str, bytes]:
    return {name: value for name, (_, value) in state.items()}
