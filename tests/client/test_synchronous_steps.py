"""Workers that take their steps together, `consistency="sync"`."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import torch
from torch import Tensor, nn

import stratagem
from tests.client.clusters import Cluster, running
from tests.faults import FaultyProxy

WORKERS = 2
Values = dict[str, Tensor]


def batches(steps: int) -> Tensor:
    """One batch of 12 rows and 5 features for each step."""
    return torch.randn(steps, 12, 5, generator=torch.Generator().manual_seed(3))


# Made once: the threads of the workers share torch's random numbers.
INITIAL = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))


def made_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def differentiate(model: nn.Module, features: Tensor) -> None:
    """Fills `.grad` with the gradients of the mean squared error."""
    errors = model(features) - features.sum(1, keepdim=True)
    errors.square().mean().backward()


def trained_together(
    strategy: stratagem.ParameterServerStrategy, worker: int, steps: int
) -> Values:
    """One worker's program: trains on its part of each batch."""
    with strategy.scope():
        model = copy.deepcopy(INITIAL)
    optimizer = stratagem.DistributedOptimizer(made_optimizer(model))

    def step(features: Tensor) -> None:
        optimizer.zero_grad()
        differentiate(model, features)
        optimizer.step()

    for batch in batches(steps):
        strategy.run(step, (batch[worker::WORKERS],))
    return {name: value.clone() for name, value in model.state_dict().items()}


def trained_alone(steps: int) -> Values:
    model = copy.deepcopy(INITIAL)
    optimizer = made_optimizer(model)
    for batch in batches(steps):
        optimizer.zero_grad()
        differentiate(model, batch)
        optimizer.step()
    return dict(model.state_dict())


@contextmanager
def delayed(cluster: Cluster, seed: int) -> Iterator[Cluster]:
    """The cluster behind proxies that delay each frame by a random time."""
    delays = random.Random(seed)
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(FaultyProxy(cluster.spec.task_address("ps", server)))
            for server in cluster.spec.task_indices("ps")
        ]
        for proxy in proxies:
            proxy.delay = lambda: delays.choice([0.0, 0.0, 0.0, 0.004])
        yield Cluster([proxy.address for proxy in proxies], WORKERS)


@pytest.mark.parametrize("steps", [1, 200])
def test_two_workers_equal_one_on_the_joined_batch(steps: int) -> None:
    with running(num_workers=WORKERS) as cluster:
        results = cluster.run(
            lambda strategy, worker: trained_together(strategy, worker, steps),
            consistency="sync",
        )
    alone = trained_alone(steps)
    for together in results:
        for name, value in alone.items():
            torch.testing.assert_close(together[name], value, rtol=1e-5, atol=1e-6)


def test_the_bytes_do_not_depend_on_the_order_of_arrival() -> None:
    runs: list[Values] = []
    for seed in range(3):
        with (
            running(num_workers=WORKERS) as servers,
            delayed(servers, seed) as cluster,
        ):
            runs += cluster.run(
                lambda strategy, worker: trained_together(strategy, worker, 12),
                consistency="sync",
            )
    first, *others = runs
    for other in others:
        assert all(torch.equal(other[name], first[name]) for name in first)


def test_hyperparameters_that_differ_are_an_error_that_names_both_workers() -> None:
    def program(strategy: stratagem.ParameterServerStrategy, worker: int) -> str:
        with strategy.scope():
            model = copy.deepcopy(INITIAL)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1 * (worker + 1))
        optimizer = stratagem.DistributedOptimizer(sgd)

        def step() -> None:
            differentiate(model, batches(1)[0])
            optimizer.step()

        with pytest.raises(stratagem.StratagemError) as failure:
            strategy.run(step)
            strategy.run(lambda: None)
        return str(failure.value)

    with running(num_workers=WORKERS) as cluster:
        errors = cluster.run(program, consistency="sync")
    refused, abandoned = sorted(errors, key=lambda error: "lr" not in error)
    for part in ("'lr'", "/job:worker/task:0", "/job:worker/task:1"):
        assert part in refused
    assert "cannot be completed" in abandoned
