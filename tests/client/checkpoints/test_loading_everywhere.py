"""Programs that load state dicts in each of their tasks, as scripts do."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from stratagem import (
    DistributedOptimizer,
    MirroredStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    Strategy,
    config,
)
from stratagem_proto.errors import FailedPreconditionError
from tests.client.clusters import Cluster, running
from tests.client.networks import equal, loss_of, network, training_step
from tests.cluster.two_workers import on_two_workers

STEPS = 3


class Saved(NamedTuple):
    """State dicts of a program that was trained before."""

    model: dict[str, torch.Tensor]
    optimizer: dict[str, Any]


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=0.1)


def saved(steps: int = 2) -> Saved:
    """What plain torch has after some steps."""
    model = network(5)
    optimizer = adam(model)
    plain_steps(model, optimizer, steps)
    return copy.deepcopy(Saved(model.state_dict(), optimizer.state_dict()))


def plain_steps(model: nn.Module, optimizer: torch.optim.Adam, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


class Program(NamedTuple):
    """A model and its optimizer, in a task."""

    model: nn.Module
    optimizer: DistributedOptimizer

    @classmethod
    def of(cls, strategy: Strategy) -> Program:
        with strategy.scope():
            model = network(0)
        return cls(model, DistributedOptimizer(adam(model)))

    def load(self, state: Saved) -> None:
        self.model.load_state_dict(state.model)
        self.optimizer.load_state_dict(state.optimizer)


def program(strategy: Strategy) -> tuple[dict[str, torch.Tensor], int]:
    """The same under each strategy: builds, loads and trains.

    Returns:
        The parameters, and how many steps the optimizer counts.
    """
    task = Program.of(strategy)
    task.load(saved())
    step = training_step(task.model, task.optimizer)
    for _ in range(STEPS):
        strategy.run(step)
    if isinstance(strategy, ParameterServerStrategy):
        strategy.barrier()
    state = task.optimizer.state_dict()["state"][0]
    return copy.deepcopy(task.model.state_dict()), int(state["step"])


def of_parameter_servers(**settings: Any) -> list[Any]:
    with running(num_servers=2, num_workers=2) as cluster:
        return cluster.run(lambda strategy, _: program(strategy), **settings)


def of_mirrored() -> list[Any]:
    config.set_logical_cpus(2)
    try:
        return [program(MirroredStrategy(["CPU:0", "CPU:1"]))]
    finally:
        config.set_logical_cpus(1)


RUNS: dict[str, tuple[Callable[[], list[Any]], int]] = {
    "one device": (lambda: [program(OneDeviceStrategy("CPU:0"))], STEPS),
    "mirrored": (of_mirrored, STEPS),
    "workers": (lambda: on_two_workers(program, cpus=1), STEPS),
    "servers, async": (of_parameter_servers, 2 * STEPS),
    "servers, sync": (lambda: of_parameter_servers(consistency="sync"), STEPS),
}


@pytest.mark.parametrize("kind", RUNS)
def test_one_program_loads_under_each_strategy(kind: str) -> None:
    run, steps = RUNS[kind]
    found = run()
    state = saved()
    model = network(5)
    model.load_state_dict(state.model)
    optimizer = adam(model)
    optimizer.load_state_dict(state.optimizer)
    plain_steps(model, optimizer, steps)
    for parameters, counted in found:
        assert counted == 2 + steps
        if kind != "servers, async":  # there gradients are of older values
            torch.testing.assert_close(parameters, dict(model.state_dict()))


def test_a_worker_may_load_before_the_chief_has(cluster: Cluster) -> None:
    """And sees what the chief has made of it since."""
    state = saved()
    with cluster.strategy(0) as chief, cluster.strategy(1) as worker:
        first, second = Program.of(chief), Program.of(worker)
        second.load(state)
        with ThreadPoolExecutor(1) as threads:
            refreshed = threads.submit(worker.refresh)
            first.load(state)
            for _ in range(2):
                chief.run(training_step(*first))
            refreshed.result(60)
        worker.refresh()
        assert equal(second.model, first.model)
        assert int(second.optimizer.state_dict()["state"][0]["step"]) == 4


def test_a_worker_may_load_after_the_chief_has_trained_on(cluster: Cluster) -> None:
    state = saved()
    with cluster.strategy(0) as chief, cluster.strategy(1) as worker:
        first, second = Program.of(chief), Program.of(worker)
        first.load(state)
        chief.run(training_step(*first))
        second.load(state)
        worker.run(training_step(*second))
        chief.refresh()
        worker.refresh()
        assert equal(second.model, first.model)
        assert int(second.optimizer.state_dict()["state"][0]["step"]) == 4


def test_what_the_chief_alone_loads_all_see(cluster: Cluster) -> None:
    state = saved()
    with cluster.strategy(0) as chief, cluster.strategy(1) as worker:
        first, second = Program.of(chief), Program.of(worker)
        first.load(state)
        chief.refresh()
        worker.refresh()
        expected = network(5)
        expected.load_state_dict(state.model)
        assert equal(second.model, expected)
        assert int(second.optimizer.state_dict()["state"][0]["step"]) == 2


def test_what_servers_have_already_needs_no_chief(cluster: Cluster) -> None:
    with cluster.strategy(0) as chief, cluster.strategy(1) as worker:
        first, second = Program.of(chief), Program.of(worker)
        chief.run(training_step(*first))
        state = first.optimizer.state_dict()
        worker.refresh()
        second.load(Saved(copy.deepcopy(second.model.state_dict()), state))
        worker.run(training_step(*second))


def test_tables_are_loaded_alike(cluster: Cluster) -> None:
    def table_of(strategy: ParameterServerStrategy) -> nn.Embedding:
        with strategy.scope():
            return nn.Embedding(6, 3, sparse=True)

    values = torch.arange(18.0).reshape(6, 3)
    with cluster.strategy(0) as chief:
        first = table_of(chief)
        with cluster.strategy(1, peer_seconds=0.5) as worker:
            second = table_of(worker)
            first.load_state_dict({"weight": values})
            second.load_state_dict({"weight": values})
            assert torch.equal(second.state_dict()["weight"], values)
            second.load_state_dict({"weight": values + 1})
            with pytest.raises(
                FailedPreconditionError, match="'weight' was set in /job:worker/task:1"
            ):
                worker.refresh()
            first.load_state_dict({"weight": values + 1})
            worker.refresh()
            assert torch.equal(second(torch.arange(6)), values + 1)


def test_other_values_of_a_worker_are_refused_after_a_barrier_at_once(
    cluster: Cluster,
) -> None:
    with cluster.strategy(0) as chief, cluster.strategy(1) as worker:
        first, second = Program.of(chief), Program.of(worker)
        first.load(saved(steps=2))
        second.model.load_state_dict(saved(steps=1).model)
        passing = threading.Thread(target=chief.barrier)
        passing.start()
        with pytest.raises(FailedPreconditionError) as caught:
            worker.barrier()
        passing.join(60)
        message = str(caught.value)
        assert "parameter '0.weight' was set in /job:worker/task:1" in message
        assert "the chief, /job:worker/task:0 at worker0.test:1" in message
        second.model.load_state_dict(saved(steps=2).model)
        worker.refresh()
        assert equal(second.model, first.model)


def test_another_state_of_an_optimizer_is_refused(cluster: Cluster) -> None:
    with cluster.strategy(0) as chief:
        first = Program.of(chief)
        with cluster.strategy(1, peer_seconds=0.5) as worker:
            second = Program.of(worker)
            first.load(saved(steps=2))
            chief.refresh()
            second.optimizer.load_state_dict(saved(steps=1).optimizer)
            for look in (second.optimizer.state_dict, lambda: worker.run(lambda: None)):
                with pytest.raises(
                    FailedPreconditionError,
                    match=r"the state of optimizer 'Adam' for '0\.weight' was set in "
                    r"/job:worker/task:1",
                ):
                    look()
        assert int(first.optimizer.state_dict()["state"][0]["step"]) == 2


def test_each_time_that_the_chief_loads_answers_for_one_time(cluster: Cluster) -> None:
    """A worker that goes back alone later is not taken for one that is late."""
    state = saved()
    with cluster.strategy(0) as chief:
        first = Program.of(chief)
        with cluster.strategy(1, peer_seconds=0.5) as worker:
            second = Program.of(worker)
            for task in (first, second):
                task.load(state)
            chief.run(training_step(*first))
            worker.run(training_step(*second))
            second.load(state)
            with pytest.raises(FailedPreconditionError, match="only in the chief"):
                worker.refresh()


def test_an_earlier_program_of_the_chief_answers_for_nothing(cluster: Cluster) -> None:
    with cluster.strategy(0) as chief:
        first = Program.of(chief)
        first.load(saved(steps=1))
        chief.refresh()
    with cluster.strategy(0) as chief:
        first = Program.of(chief)
        first.load(saved(steps=2))
        chief.refresh()
        with cluster.strategy(1, peer_seconds=0.5) as worker:
            second = Program.of(worker)
            second.load(saved(steps=1))
            with pytest.raises(FailedPreconditionError, match="only in the chief"):
                worker.refresh()


def test_workers_without_servers_that_load_differing_states_are_told() -> None:
    def run(strategy: Strategy) -> None:
        task = Program.of(strategy)
        task.model.load_state_dict(saved().model)
        chief = strategy.extended.should_checkpoint
        task.optimizer.load_state_dict(saved(steps=2 if chief else 1).optimizer)
        strategy.run(training_step(*task))

    with pytest.raises(Exception, match="written by hand, and not alike"):
        on_two_workers(run, cpus=1)
