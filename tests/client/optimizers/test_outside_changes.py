"""What programs do to gradients and hooks outside of `run`, where several replicas train."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import stratagem
from stratagem import DistributedOptimizer, FailedPreconditionError, Strategy
from tests.client.clusters import running

pytestmark = pytest.mark.usefixtures("four_cpus")

PAIR = ["CPU:0", "CPU:1"]


@contextmanager
def on_servers() -> Iterator[Strategy]:
    with running(num_servers=1) as cluster, cluster.strategy(num_replicas_per_worker=2) as strategy:
        yield strategy


SEVERAL: dict[str, Callable[[], AbstractContextManager[Strategy]]] = {
    "mirrored": lambda: nullcontext(stratagem.MirroredStrategy(PAIR)),
    "central storage": lambda: nullcontext(stratagem.CentralStorageStrategy(PAIR)),
    "servers": on_servers,
}
ONE = {"one device": lambda: nullcontext(stratagem.OneDeviceStrategy("CPU:0"))}


class Training:
    """A weight from zero on, whose gradient is -1 in each replica and backward."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.model = nn.Linear(1, 1, bias=False)
            nn.init.zeros_(self.model.weight)
        sgd = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.optimizer = DistributedOptimizer(sgd)

    @property
    def weight(self) -> Tensor:
        return self.model.weight

    def backward(self) -> None:
        self.strategy.run(self.alone)

    def step(self) -> None:
        """Backward and step, in one run."""

        def step() -> None:
            self.alone()
            self.optimizer.step()

        self.strategy.run(step)

    def apply(self) -> None:
        self.strategy.run(self.optimizer.step)

    def alone(self) -> None:
        """Backward, in one replica or outside of all."""
        (-self.model(torch.ones(1, 1))).sum().backward()

    def steps(self, before: Callable[[], object], count: int = 3) -> list[float]:
        seen = []
        for _ in range(count):
            before()
            self.step()
            seen.append(self.weight.item())
        return seen


@pytest.fixture(params=[*ONE.values(), *SEVERAL.values()], ids=[*ONE, *SEVERAL])
def training(request: pytest.FixtureRequest) -> Iterator[Training]:
    with request.param() as strategy:
        yield Training(strategy)


@pytest.fixture(params=[*SEVERAL.values()], ids=[*SEVERAL])
def replicas(request: pytest.FixtureRequest) -> Iterator[Training]:
    """Training by several of them."""
    with request.param() as strategy:
        yield Training(strategy)


def halved(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_counts_in_every_replica(training: Training, kind: str) -> None:
    hook = (lambda gradient: gradient * 0.5) if kind == "register_hook" else halved
    handle = getattr(training.weight, kind)(hook)
    assert training.steps(training.optimizer.zero_grad) == [0.5, 1.0, 1.5]
    handle.remove()
    assert training.steps(training.optimizer.zero_grad, 1) == [2.5]


def test_a_hook_of_a_replica_stays_its_own(training: Training) -> None:
    def hooked() -> None:
        weight = training.model.weight
        weight.register_hook(lambda gradient: gradient * 0.5)

    training.strategy.run(hooked)
    assert training.steps(training.optimizer.zero_grad, 2) == [0.5, 1.0]


def test_a_frozen_parameter_keeps_its_hook(training: Training) -> None:
    training.weight.register_hook(lambda gradient: gradient * 0.5)
    training.weight.requires_grad_(False)
    training.strategy.run(lambda: training.model(torch.ones(1, 1)))
    training.weight.requires_grad_(True)
    assert training.steps(training.optimizer.zero_grad, 2) == [0.5, 1.0]


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_the_model_clears_are_cleared_in_every_replica(
    training: Training, to_none: bool
) -> None:
    clear = partial(training.model.zero_grad, set_to_none=to_none)
    assert training.steps(clear) == [1.0, 2.0, 3.0]


def test_gradients_that_a_program_takes_away_are_taken_from_every_replica(
    training: Training,
) -> None:
    def take() -> None:
        training.weight.grad = None

    assert training.steps(take) == [1.0, 2.0, 3.0]


def test_gradients_are_accumulated_over_runs(training: Training) -> None:
    for _ in range(3):
        training.backward()
    training.apply()
    assert training.weight.item() == 3.0


CHANGES: dict[str, Callable[[Training], object]] = {
    "clipped": lambda training: nn.utils.clip_grad_norm_(training.weight, 0.5),
    "scaled": lambda training: halved(training.weight),
    "assigned": lambda training: setattr(training.weight, "grad", torch.full((1, 1), 0.5)),
    "added": lambda training: training.alone(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("runs_between", [0, 1])
def test_a_gradient_changed_for_the_first_replica_alone_is_refused(
    replicas: Training, change: str, runs_between: int
) -> None:
    replicas.backward()
    CHANGES[change](replicas)
    for _ in range(runs_between):
        replicas.backward()
    with pytest.raises(FailedPreconditionError, match=r"changed outside of run.*zero_grad"):
        replicas.apply()
    assert replicas.weight.item() == 0.0
    assert replicas.steps(replicas.optimizer.zero_grad, 2) == [1.0, 2.0]


def test_a_gradient_changed_and_cleared_in_a_run_is_no_mistake(replicas: Training) -> None:
    def step() -> None:
        replicas.optimizer.zero_grad()
        replicas.alone()
        replicas.optimizer.step()

    replicas.alone()
    replicas.strategy.run(step)
    assert replicas.weight.item() == 1.0


def of_variable(strategy: Strategy) -> tuple[stratagem.Variable, Callable[[], None]]:
    """A variable from zero on, and a step with the gradient -1 in each replica."""
    with strategy.scope():
        variable = stratagem.Variable(torch.zeros(()))
    optimizer = DistributedOptimizer(torch.optim.SGD([variable.value()], lr=1.0))

    def step() -> None:
        (-variable.value()).backward()
        optimizer.step()

    return variable, step


def test_the_gradient_of_a_variable_is_cleared_in_every_replica(training: Training) -> None:
    variable, step = of_variable(training.strategy)
    seen = []
    for _ in range(3):
        variable.grad = None
        training.strategy.run(step)
        seen.append(float(variable.numpy()))
    assert seen == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("runs", [0, 1])
def test_the_gradient_of_a_variable_is_not_set_for_the_first_replica_alone(
    replicas: Training, runs: int
) -> None:
    variable, step = of_variable(replicas.strategy)
    for _ in range(runs):
        replicas.strategy.run(step)
    with pytest.raises(FailedPreconditionError, match=r"set outside of run.* each of 2 replicas"):
        variable.grad = torch.ones(())
