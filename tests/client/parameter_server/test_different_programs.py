"""Workers whose programs differ in their optimizers, or in how many steps they take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from stratagem import (
    DistributedOptimizer,
    InvalidTypeError,
    LocalSteps,
    OneDeviceStrategy,
    ParameterServerStrategy,
    StratagemError,
    UnevenStepsError,
    Variable,
)
from tests.client.clusters import running
from tests.full import a_few

Make = Callable[[Sequence[torch.Tensor]], Optimizer]


class Program:
    """One worker's program: a module, and the optimizers that step it."""

    def __init__(self, strategy: ParameterServerStrategy, *makes: Make) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.module = nn.Linear(2, 1)
        self.optimizers = [
            DistributedOptimizer(make([*self.module.parameters()])) for make in makes
        ]

    def step(self, optimizer: int = 0) -> None:
        def step() -> None:
            self.optimizers[optimizer].zero_grad()
            self.module(torch.ones(1, 2)).sum().backward()
            self.optimizers[optimizer].step()

        self.strategy.run(step)


def errors_of(consistency: str, *makes: Sequence[Make]) -> list[str]:
    """Return what workers are told, whose optimizers are made by these."""
    both_have_tried = threading.Barrier(2)

    def train(strategy: ParameterServerStrategy, worker: int) -> str:
        program, told = Program(strategy, *makes[worker]), ""
        try:
            strategy.barrier("built")
            program.step()
            strategy.refresh()
        except StratagemError as error:
            told = f"{type(error).__name__}: {error}"
        both_have_tried.wait(60)
        return told

    with running(2, num_workers=2) as cluster:
        return cluster.run(train, consistency=consistency, peer_seconds=5)


@a_few("consistency", ["async", "sync", "bounded"], "the first request of a step is the same", 2)
def test_workers_step_the_same_variables_by_optimizers_of_one_class(consistency: str) -> None:
    told = errors_of(consistency, [lambda p: SGD(p, lr=0.1)], [lambda p: Adam(p, lr=0.1)])
    refused = [each for each in told if each.startswith("InvalidArgumentError")]
    assert len(refused) == 1
    assert "SGD" in refused[0] and "Adam" in refused[0]
    assert "/job:worker/task:0" in refused[0] and "/job:worker/task:1" in refused[0]
    assert "run the same program on all workers" in refused[0]


def test_workers_make_their_optimizers_with_the_same_values() -> None:
    told = errors_of(
        "async",
        [lambda p: Adam(p, lr=0.1, betas=(0.9, 0.99))],
        [lambda p: Adam(p, lr=0.1, betas=(0.8, 0.99))],
    )
    assert sum("different values of 'betas'" in each for each in told) == 1


def test_what_schedules_change_may_differ_between_workers() -> None:
    def train(strategy: ParameterServerStrategy, worker: int) -> None:
        program = Program(strategy, lambda p: SGD(p, lr=0.1 * (1 + worker), momentum=0.5))
        program.optimizers[0].param_groups[0]["momentum"] = 0.1 * worker
        strategy.barrier("built")
        program.step()

    with running(1, num_workers=2) as cluster:
        cluster.run(train)


def test_workers_may_go_from_one_optimizer_to_another_at_different_times() -> None:
    def train(strategy: ParameterServerStrategy, worker: int) -> None:
        program = Program(strategy, lambda p: SGD(p, lr=0.1), lambda p: Adam(p, lr=0.1))
        strategy.barrier("built")
        program.step(worker)
        strategy.barrier("between")
        program.step(1 - worker)

    with running(1, num_workers=2) as cluster:
        cluster.run(train)


def test_workers_may_step_other_variables_by_other_optimizers() -> None:
    def train(strategy: ParameterServerStrategy, worker: int) -> None:
        with strategy.scope():
            variables = [Variable(torch.ones(2)), Variable(torch.ones(2))]
        mine = variables[worker].value()
        make = [SGD, Adam][worker]
        optimizer = DistributedOptimizer(make([mine], lr=0.1))
        strategy.barrier("built")
        mine.grad = torch.ones(2)
        optimizer.step()

    with running(1, num_workers=2) as cluster:
        cluster.run(train)


def test_a_worker_that_comes_back_may_have_another_optimizer_than_those_that_are_gone() -> None:
    makes = iter([SGD, SGD, Adam, Adam])

    def train(strategy: ParameterServerStrategy, worker: int) -> None:
        Program(strategy, next(makes)).step()

    with running(1, num_workers=2) as cluster:
        for _ in range(2):
            cluster.run(train)


def many_and_few(ends: Callable[[ParameterServerStrategy], object], longer: int) -> list[str]:
    """Return what workers are told of which one takes a synchronous step more than the other."""

    def train(strategy: ParameterServerStrategy, worker: int) -> str:
        program = Program(strategy, lambda p: SGD(p, lr=0.1))
        try:
            for _ in range(2 + (worker == longer)):
                program.step()
        except UnevenStepsError as error:
            return str(error)
        if worker != longer:
            ends(strategy)
        return ""

    with running(2, num_workers=2) as cluster:
        return cluster.run(train, consistency="sync", peer_seconds=300)


def ends(strategy: ParameterServerStrategy) -> None:
    """Do nothing more."""


def waits_at_a_barrier(strategy: ParameterServerStrategy) -> None:
    with pytest.raises(StratagemError):
        strategy.barrier("end", timeout=10)


@pytest.mark.parametrize("longer", [0, 1])
@pytest.mark.parametrize("finish", [ends, waits_at_a_barrier])
def test_a_worker_with_a_batch_more_learns_at_once_whom_its_step_lacks(
    finish: Callable[[ParameterServerStrategy], None], longer: int
) -> None:
    began = time.monotonic()
    told = many_and_few(finish, longer)
    assert told[1 - longer] == ""
    assert f"/job:worker/task:{1 - longer}" in told[longer]
    assert "step 3 of 'SGD'" in told[longer]
    assert "strategy.steps(n)" in told[longer]
    assert time.monotonic() - began < 100


def test_a_worker_that_waited_at_a_barrier_is_waited_for_behind_it() -> None:
    def train(strategy: ParameterServerStrategy, worker: int) -> None:
        program = Program(strategy, lambda p: SGD(p, lr=0.1))
        for _ in range(3):
            program.step()
            strategy.barrier("each")
            if worker:
                time.sleep(0.1)

    with running(2, num_workers=2) as cluster:
        cluster.run(train, consistency="sync", peer_seconds=300)


def test_local_steps_take_no_optimizer_that_steps_on_the_servers() -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        program = Program(strategy, lambda p: SGD(p, lr=0.1))
        with pytest.raises(InvalidTypeError, match=r"a torch\.optim\.Optimizer, not Distributed"):
            LocalSteps(program.optimizers[0], every=2)


def test_functions_whose_body_no_replica_would_run_are_refused() -> None:
    async def waits() -> None:
        raise AssertionError

    def yields() -> Iterator[None]:
        raise AssertionError
        yield

    for function in (waits, yields):
        with pytest.raises(InvalidTypeError, match="pass a plain function"):
            OneDeviceStrategy("CPU:0").run(function)
