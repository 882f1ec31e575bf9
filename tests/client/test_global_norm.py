"""Clipping by the norm of what all workers contribute and several servers add up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import (
    AbortedError,
    DistributedOptimizer,
    NonFiniteGradientError,
    ParameterServerStrategy,
)
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._servers.connection import Connection
from stratagem._servers.pending import Pending
from stratagem._servers.request import Request
from stratagem.cluster_resolver import SimpleClusterResolver
from tests.client.clusters import TOKEN, Cluster, running

NAN = float("nan")
STEPS = 5
CLIP = 0.05
ROWS = 12


class Model(nn.Module):
    """Rows that some batches look up, and dense layers."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.rows = nn.Embedding(ROWS, 3, sparse=sparse)
        self.hidden = nn.Linear(3, 4)
        self.output = nn.Linear(4, 1)
        nn.init.constant_(self.rows.weight, 0.25)
        generator = torch.Generator().manual_seed(1)
        for layer in (self.hidden, self.output):
            nn.init.uniform_(layer.weight, -0.5, 0.5, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.output(self.hidden(self.rows(rows)).tanh())
        return (loss - 3).pow(2).mean()


def batch(number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(ROWS, (8,), generator=generator)


def values_of(model: Model) -> list[torch.Tensor]:
    dense = [*model.hidden.parameters(), *model.output.parameters()]
    return [each.detach().clone() for each in (model.rows(torch.arange(ROWS)), *dense)]


def as_bytes(values: Sequence[torch.Tensor]) -> list[bytes]:
    return [value.numpy().tobytes() for value in values]


def train(
    sparse: bool, strategy: ParameterServerStrategy, worker: int
) -> list[torch.Tensor]:
    with strategy.scope():
        model = Model(sparse)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = DistributedOptimizer(sgd, clip_norm=CLIP)

    def step(rows: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(rows).backward()
        optimizer.step()

    for number in range(STEPS):
        strategy.run(step, args=(batch(number).chunk(2)[worker],))
    strategy.barrier()
    return values_of(model)


def trained_locally() -> list[torch.Tensor]:
    model = Model(sparse=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for number in range(STEPS):
        optimizer.zero_grad()
        model(batch(number)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    return values_of(model)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("shards", [1, 2])
def test_two_workers_equal_plain_clipping_on_the_joined_batch(
    sparse: bool, shards: int
) -> None:
    partitioner = stratagem.partitioners.FixedShardsPartitioner(shards)
    with running(num_servers=3, num_workers=2) as cluster:
        first, second = cluster.run(
            partial(train, sparse), consistency="sync", variable_partitioner=partitioner
        )
    assert as_bytes(first) == as_bytes(second)
    for ours, theirs in zip(first, trained_locally(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


class Pair:
    """A worker that steps two parameters, one on each of two servers.

    Its gradients are 3 and 4 times its number plus 1, so that their norm is bounded.
    """

    def __init__(self, strategy: ParameterServerStrategy, **settings: Any) -> None:
        self.strategy = strategy
        self.number = strategy.cluster_resolver.task_id or 0
        with strategy.scope():
            self.model = nn.Linear(1, 1)
            nn.init.zeros_(self.model.weight)
            nn.init.zeros_(self.model.bias)
        sgd = torch.optim.SGD(self.model.parameters(), lr=1.0)
        settings = {"clip_norm": 1.0, **settings}
        self.optimizer = DistributedOptimizer(sgd, **settings)

    def step(self, weight: float | None = None, bias: float = 4.0) -> None:
        weight = 3.0 * (self.number + 1) if weight is None else weight
        self.model.weight.grad = torch.tensor([[weight]])
        self.model.bias.grad = torch.tensor([bias * (self.number + 1)])
        self.optimizer.step()

    def run(self, *gradients: float) -> None:
        self.strategy.run(self.step, args=gradients)

    def values(self) -> list[float]:
        self.strategy.refresh()
        return [self.model.weight.item(), self.model.bias.item()]


def after(steps: int, cluster: Cluster, order: Sequence[int] = (0, 1)) -> list[float]:
    """What both parameters are after steps that nothing disturbs."""
    with ExitStack() as stack:
        workers = pairs(stack, cluster)
        for _ in range(steps):
            for number in order:
                workers[number].run()
        values = [worker.values() for worker in workers]
    assert values[0] == values[1]
    return values[0]


def pairs(stack: ExitStack, cluster: Cluster, **settings: Any) -> list[Pair]:
    strategies = [
        stack.enter_context(cluster.strategy(number, consistency="sync"))
        for number in range(2)
    ]
    return [Pair(strategy, **settings) for strategy in strategies]


@pytest.fixture
def two_servers() -> Iterator[Cluster]:
    with running(num_servers=2, num_workers=2) as cluster:
        yield cluster


def test_the_order_of_arrival_leaves_no_trace(two_servers: Cluster) -> None:
    found = after(3, two_servers)
    assert found == pytest.approx([-1.8, -2.4], rel=1e-5)
    with running(num_servers=2, num_workers=2) as cluster:
        assert after(3, cluster, order=(1, 0)) == found


def test_steps_of_one_run_are_finished_in_their_order(two_servers: Cluster) -> None:
    with ExitStack() as stack:
        workers = pairs(stack, two_servers)

        def steps(worker: Pair) -> None:
            for _ in range(3):
                worker.step()

        for worker in workers:
            worker.strategy.run(steps, args=(worker,))
        assert workers[0].values() == pytest.approx([-1.8, -2.4], rel=1e-5)


def test_a_step_needs_no_more_workers_than_it_says(two_servers: Cluster) -> None:
    with ExitStack() as stack:
        one = stratagem.consistency.Sync(1)
        first, second = (
            Pair(stack.enter_context(two_servers.strategy(number, consistency=one)))
            for number in range(2)
        )

        def step() -> None:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(first.run).result()
            second.step()

        second.strategy.run(step)
        assert first.values() == pytest.approx([-0.6, -0.8], rel=1e-5)
        assert second.values() == first.values()
        report = first.strategy.consistency_report()["SGD"]
        assert [worker.dropped for worker in report.workers.values()] == [0, 1]


def test_an_overflow_that_one_server_sees_drops_the_step_on_all(
    two_servers: Cluster,
) -> None:
    with ExitStack() as stack:
        workers = pairs(stack, two_servers, on_nonfinite="reject", reduce_op="sum")
        for gradients in ((3e38, 4.0), ()):
            for worker in workers:
                worker.run(*gradients)
        for worker in workers:
            assert worker.values() == pytest.approx([-0.6, -0.8], rel=1e-5)
            assert worker.optimizer.rejected_steps == 1


@pytest.mark.parametrize("spoilt", [3e38, NAN])
def test_a_step_that_is_not_finite_fails_on_all_servers(
    two_servers: Cluster, spoilt: float
) -> None:
    with ExitStack() as stack:
        first, second = pairs(stack, two_servers, on_nonfinite="raise", reduce_op="sum")
        first.run(3e38)
        with pytest.raises(NonFiniteGradientError) as caught:
            second.run(spoilt)
        assert caught.value.variable == "weight"
        with pytest.raises(NonFiniteGradientError):
            first.values()


@pytest.mark.parametrize("limits", [{"on_nonfinite": "zero"}, {"clip_value": 1e9}])
def test_other_limits_come_before_that_of_the_norm(
    two_servers: Cluster, limits: dict[str, Any]
) -> None:
    with ExitStack() as stack:
        for worker in (workers := pairs(stack, two_servers, **limits)):
            worker.run(math.inf)
        weight, bias = workers[0].values()
    expected = (0.0, -1.0) if "on_nonfinite" in limits else (-1.0, 0.0)
    assert (weight, bias) == pytest.approx(expected, abs=1e-5)


class Vanished(Exception):
    """A worker has ended."""


class Fate:
    """Ends a worker in place of its request of some number, counted from 0."""

    def __init__(self, worker: Pair, number: int) -> None:
        self.sent: list[str] = []
        self._number = number
        self._pending: list[Pending[Any]] = []
        self._patch = pytest.MonkeyPatch()
        extended = worker.strategy.extended
        assert isinstance(extended, ParameterServerExtended)
        for connection in extended._store.servers._connections:
            start = partial(self._start, connection)
            self._patch.setattr(connection, "start", start)

    def _start(self, connection: Connection, request: Request[Any]) -> Pending[Any]:
        if len(self.sent) == self._number:
            for pending in self._pending:
                # What was sent has arrived.
                if pending._settled is not None:
                    pending.result()
            raise Vanished
        pending = Connection.start(connection, request)
        self._pending.append(pending)
        self.sent.append(request.method)
        return pending


def vanish(worker: Pair, number: int) -> tuple[list[str], bool]:
    """Has a worker end in its step; returns what it had sent, and if that was all."""
    fate = Fate(worker, number)
    try:
        worker.run()
    except Vanished:
        return fate.sent, False
    finally:
        worker.strategy.close()
    return fate.sent, True


def vanishings(
    check: Callable[[Cluster, Pair, list[str]], None],
) -> list[str]:
    """Has the second worker end at each point of the second step.

    Args:
        check: Called with the cluster, the first worker, whose part of the step is
            there, and what the other has sent.

    Returns:
        What a worker sends in a step.
    """
    for number in count():
        with (
            running(num_servers=2, num_workers=2) as cluster,
            ExitStack() as stack,
        ):
            first, second = pairs(stack, cluster)
            first.run()
            second.run()
            first.run()
            sent, whole = vanish(second, number)
            check(cluster, first, sent)
        if whole:
            return sent
    raise AssertionError("a step has an end")


def restarted(stack: ExitStack, cluster: Cluster) -> Pair:
    return Pair(stack.enter_context(cluster.strategy(1, consistency="sync")))


@pytest.mark.cluster
def test_others_finish_what_a_worker_left_closed(two_servers: Cluster) -> None:
    two, three = after(2, two_servers), [-1.8, -2.4]

    def check(cluster: Cluster, first: Pair, sent: list[str]) -> None:
        closed = sent.count("CommitContribution") == 2
        if closed:
            assert first.values() == two
        else:
            with pytest.raises(AbortedError, match="start that task again"):
                first.values()
        with ExitStack() as stack:
            second = restarted(stack, cluster)
            if not closed:
                second.run()
            second.run()
            first.run()
            assert first.values() == pytest.approx(three, rel=1e-5)
            assert second.values() == first.values()

    sent = vanishings(check)
    assert sent.count("FinishStep") == sent.count("ListClosedSteps") == 2


@pytest.mark.cluster
def test_a_worker_that_is_started_again_finishes_its_step(
    two_servers: Cluster,
) -> None:
    two = after(2, two_servers)

    def check(cluster: Cluster, first: Pair, sent: list[str]) -> None:
        with ExitStack() as stack:
            second = restarted(stack, cluster)
            if sent.count("CommitContribution") < 2:
                second.run()
            assert second.values() == two
            assert first.values() == two

    vanishings(check)


@pytest.mark.cluster
def test_a_snapshot_has_a_step_on_all_servers_or_on_none(two_servers: Cluster) -> None:
    two = after(2, two_servers)

    def check(cluster: Cluster, first: Pair, sent: list[str]) -> None:
        resolver = SimpleClusterResolver(cluster.spec, task_type="evaluator", task_id=0)
        with ParameterServerStrategy(resolver, token=TOKEN) as strategy:
            reader = Pair(strategy)
            with strategy.snapshot():
                seen = reader.values()
        closed = sent.count("CommitContribution") == 2
        assert seen == (two if closed else pytest.approx([-0.6, -0.8], rel=1e-5))

    vanishings(check)


@pytest.mark.cluster
def test_a_checkpoint_has_what_a_worker_left_closed(
    two_servers: Cluster, tmp_path: Path
) -> None:
    two = after(2, two_servers)

    def check(cluster: Cluster, first: Pair, sent: list[str]) -> None:
        if sent.count("CommitContribution") < 2:
            return
        folder = tmp_path / str(len(sent))
        first.strategy.save(folder)
        with (
            running(num_servers=2) as other,
            other.strategy(consistency="sync") as strategy,
        ):
            reader = Pair(strategy)
            strategy.restore(folder)
            assert reader.values() == two

    vanishings(check)
