"""Steps that all workers take together, and pushes that each takes alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
import torch
from torch import nn

import stratagem
from stratagem import (
    DeadlineExceededError,
    DistributedOptimizer,
    InvalidArgumentError,
    ParameterServerStrategy,
    UnevenStepsError,
)
from tests.client.clusters import Cluster, running
from tests.client.parameter_server.training import (
    batch,
    bytes_of,
    loss_of,
    make_model,
)
from tests.faults import CutAt, FaultyProxy, Passing, Verdict
from tests.full import a_few

STEPS = 12
CUTS = [Verdict.CUT_BEFORE, Verdict.CUT_WITHIN, Verdict.CUT_AFTER]


def train(
    strategy: ParameterServerStrategy, worker: int, workers: int, steps: int = STEPS
) -> nn.Module:
    """Trains on this worker's share of each batch; fresh parameters at the end."""
    with strategy.scope():
        module = make_model()
    optimizer = DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.02))

    def step(inputs: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss_of(module, inputs).backward()
        optimizer.step()

    for number in range(steps):
        strategy.run(step, args=(batch(number).chunk(workers)[worker],))
    strategy.refresh()
    return module


def trained_locally(steps: int = STEPS) -> nn.Module:
    module = make_model()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    for number in range(steps):
        optimizer.zero_grad()
        loss_of(module, batch(number)).backward()
        optimizer.step()
    return module


@contextmanager
def behind_proxies(cluster: Cluster) -> Iterator[list[FaultyProxy]]:
    """Puts a proxy before each server and gives the cluster their addresses."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultyProxy(address)) for address in cluster.servers]
        addresses = [proxy.address for proxy in proxies]
        cluster.spec = stratagem.ClusterSpec({**cluster.spec.as_dict(), "ps": addresses})
        yield proxies


def trained_together(cluster: Cluster, steps: int = STEPS) -> list[nn.Module]:
    return cluster.run(
        lambda strategy, worker: train(strategy, worker, 2, steps), consistency="sync"
    )


@a_few(
    "steps",
    [1, 50, pytest.param(200, marks=pytest.mark.long)],
    "one step is of two workers already",
)
def test_two_workers_equal_one_on_the_joined_batch(steps: int) -> None:
    with running(num_servers=2, num_workers=2) as cluster:
        first, second = trained_together(cluster, steps)
    assert bytes_of(first) == bytes_of(second)
    pairs = zip(first.parameters(), trained_locally(steps).parameters(), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.cluster
def test_the_order_of_arrival_leaves_no_trace_in_the_result() -> None:
    results = []
    for seed in (1, 2):
        chance = random.Random(seed)
        with (
            running(num_servers=2, num_workers=2) as cluster,
            behind_proxies(cluster) as proxies,
        ):
            for proxy in proxies:
                proxy.delay = partial(chance.uniform, 0.0, 0.004)
            first, _ = trained_together(cluster)
        results.append(bytes_of(first))
    assert results[0] == results[1]


@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_one_worker_equals_a_local_loop_byte_for_byte(consistency: str) -> None:
    with (
        running(num_servers=2, num_workers=1) as cluster,
        cluster.strategy(consistency=consistency) as strategy,
    ):
        module = train(strategy, 0, 1)
    assert bytes_of(module) == bytes_of(trained_locally())


def test_hyperparameters_that_differ_name_both_workers() -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> str:
        with strategy.scope():
            module = nn.Linear(2, 1)
        optimizer = DistributedOptimizer(
            torch.optim.SGD(module.parameters(), lr=0.1 * (1 + worker))
        )

        def step() -> None:
            module(torch.ones(1, 2)).sum().backward()
            optimizer.step()

        strategy.barrier("built")
        try:
            strategy.run(step)
        except InvalidArgumentError as error:
            return str(error)
        except UnevenStepsError:
            # The other one was refused first, and has left.
            return ""
        return ""

    with running(num_servers=2, num_workers=2) as cluster:
        messages = list(filter(None, cluster.run(program, consistency="sync")))
    # Each worker may be the second one on a server.
    assert messages
    for message in messages:
        assert "/job:worker/task:0" in message
        assert "/job:worker/task:1" in message
        assert "lr" in message


def test_a_worker_that_does_not_contribute_is_named() -> None:
    with (
        running(num_servers=1, num_workers=2) as cluster,
        cluster.strategy(0, consistency="sync", peer_seconds=0.3) as strategy,
        pytest.raises(DeadlineExceededError, match="worker 1"),
    ):
        train(strategy, 0, 2, steps=1)


def make_counters(
    strategy: ParameterServerStrategy,
) -> tuple[Callable[[int], None], Callable[[], list[float]]]:
    """Two sums, one on each server: how to add to both, and how to read them."""
    with strategy.scope():
        module = nn.Linear(1, 1)
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
    # Gradients are added as they are.
    sgd = torch.optim.SGD(module.parameters(), lr=1.0, maximize=True)
    optimizer = DistributedOptimizer(sgd, "sum")

    def step(amount: int) -> None:
        for parameter in module.parameters():
            parameter.grad = torch.full_like(parameter, amount)
        optimizer.step()

    def add(amount: int) -> None:
        strategy.run(step, args=(amount,))

    def sums() -> list[float]:
        strategy.refresh()
        return [parameter.item() for parameter in module.parameters()]

    return add, sums


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("verdict", "consistency"),
    [
        (Verdict.CUT_BEFORE, "sync"),
        (Verdict.CUT_WITHIN, "async"),
        (Verdict.CUT_AFTER, "async"),
    ],
    ids=str,
)
def test_integers_pushed_with_a_cut_at_each_boundary_are_added_once(
    verdict: Verdict, consistency: str
) -> None:
    with (
        running(num_servers=2) as cluster,
        behind_proxies(cluster) as proxies,
        cluster.strategy(consistency=consistency) as strategy,
    ):
        add, sums = make_counters(strategy)
        add(1)
        pushed, boundaries = 1, 0
        for boundary in range(100):
            cut = proxies[boundary % 2].judge = CutAt(boundary // 2, verdict)
            add(boundary)
            pushed += boundary
            boundaries += cut.seen > cut.number
            if cut.seen <= cut.number:
                break
        assert sums() == [float(pushed)] * 2
    # At least headers and a message each way, per server, of a push and of a pull. The answer to an
    # asynchronous push is the pull.
    assert boundaries >= {"sync": 16, "async": 8}[consistency]


@pytest.mark.cluster
@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_integers_pushed_over_failing_connections_are_added_once(
    consistency: str,
) -> None:
    pushed: Sequence[Sequence[int]] = [range(1, 16), range(100, 115)]

    def program(strategy: ParameterServerStrategy, worker: int) -> list[float]:
        add, sums = make_counters(strategy)
        for amount in pushed[worker]:
            add(amount)
        strategy.barrier()
        return sums()

    chance = random.Random(3)

    def cut_sometimes(passing: Passing) -> Verdict:
        if passing.carries_message and chance.random() < 0.02:
            return chance.choice(CUTS)
        return Verdict.PASS

    with (
        running(num_servers=2, num_workers=2) as cluster,
        behind_proxies(cluster) as proxies,
    ):
        for proxy in proxies:
            proxy.judge = cut_sometimes
        results = cluster.run(program, consistency=consistency)
        cuts = sum(proxy.cuts for proxy in proxies)
    total = float(sum(map(sum, pushed)))
    assert results == [[total, total]] * 2
    assert cuts > 5
