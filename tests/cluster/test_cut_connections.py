"""Training whose connections are cut at any byte, again and again."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from stratagem import DistributedOptimizer, ParameterServerStrategy
from stratagem.consistency import Async, Bounded, Consistency, Sync
from stratagem_rpc.channel import AUTO, GRPC, TCP, TRANSPORT_VARIABLE, UNIX
from tests.client.relayed_clusters import RelayedCluster, relayed

pytestmark = pytest.mark.cluster

CONSISTENCIES = (Async(), Sync(3), Bounded(1), Sync())
LEAST_CUTS = 2_000  # of all cases together

# Cuts of each case. What goes by gRPC takes longest to go on.
CUTS = {GRPC: 80, TCP: 140, UNIX: 140, AUTO: 140}
WORKERS, SERVERS, STEPS = 4, 2, 25
PATIENCE = 120.0

# Elements of a variable: what is worth it goes through shared memory.
SIZES = {AUTO: 1 << 15}

# About what a step of one worker sends to a server, or is answered.
MOST_BYTES = {GRPC: 2_500, AUTO: 700}


# One of each kind. `make test-long` tries all with all.
BRIEF = ((GRPC, Async()), (TCP, Sync(3)), (UNIX, Async()), (AUTO, Sync(3)))
CASES = [
    pytest.param(*case, marks=[pytest.mark.long] * (case not in BRIEF))
    for case in itertools.product(CUTS, CONSISTENCIES)
]


@pytest.fixture
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(TRANSPORT_VARIABLE, request.param)
    return str(request.param)


@pytest.fixture
def relays(transport: str) -> Iterator[RelayedCluster]:
    most = MOST_BYTES.get(transport, 1_500)
    with relayed(transport, SERVERS, WORKERS, most) as relays:
        yield relays


class Worker:
    """One that counts its pushes, in an element of its own on each server.

    Args:
        strategy: Its strategy.
        number: Which it is.
        size: Elements of a variable.
    """

    def __init__(self, strategy: ParameterServerStrategy, number: int, size: int) -> None:
        with strategy.scope():
            self._module = nn.ParameterList([torch.zeros(size) for _ in range(SERVERS)])
        sgd = torch.optim.SGD(self._module.parameters(), lr=1.0, maximize=True)
        self._optimizer = DistributedOptimizer(sgd, "sum")
        self._strategy, self._number = strategy, number
        self._pushes = 0

    def train(self, most: float) -> None:
        """Takes some steps, or as many as it takes until all have pushed so often."""
        if most == math.inf:
            for _ in range(STEPS):
                self._strategy.run(self._step, args=(most,))
        else:
            while self._strategy.run(self._step, args=(most,)):
                pass

    def _step(self, most: float) -> bool:
        if self.counted()[0].sum() >= most:
            return False
        for parameter in self._module:
            parameter.grad = torch.zeros_like(parameter)
            parameter.grad[self._number] = 1.0
        self._optimizer.step()
        self._pushes += 1
        return True

    def counted(self) -> torch.Tensor:
        """What each server has counted of each worker."""
        return torch.stack([one.detach()[:WORKERS] for one in self._module])

    def expected(self) -> int:
        """How many of its pushes count."""
        report = self._strategy.consistency_report()[self._optimizer.name]
        task = report.workers[f"/job:worker/task:{self._number}"]
        return self._pushes - task.dropped


class Training:
    """Rounds of steps, until there were enough cuts.

    Args:
        relays: Where they are taken.
        transport: By which.
        together: How many pushes make a step; None where each does.
    """

    def __init__(self, relays: RelayedCluster, transport: str, together: int | None) -> None:
        self._relays, self._together = relays, together
        self._size = SIZES.get(transport, WORKERS)
        self._enough = CUTS[transport]
        self._rounds, self._is_over = 0, False
        self._meeting = threading.Barrier(WORKERS, self._decide, PATIENCE)

    def _decide(self) -> None:
        self._rounds += 1
        self._is_over = self._relays.cuts >= self._enough
        if self._rounds == 1:
            self._relays.cut_at_random()
        if self._is_over:
            self._relays.let_pass()

    def __call__(self, strategy: ParameterServerStrategy, number: int) -> tuple[torch.Tensor, int]:
        """What was counted of each worker in the end, and how often this one pushed."""
        worker = Worker(strategy, number, self._size)
        strategy.barrier("built")
        while not self._meet():
            worker.train((self._together or math.inf) * STEPS * self._rounds)
        strategy.barrier("over")
        return worker.counted(), worker.expected()

    def _meet(self) -> bool:
        self._meeting.wait()
        return self._is_over


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("transport", "consistency"), CASES, ids=str, indirect=["transport"])
def test_each_update_counts_once_however_often_connections_are_cut(
    relays: RelayedCluster, transport: str, consistency: Consistency
) -> None:
    together = None
    if isinstance(consistency, Sync):
        together = consistency.replicas_to_aggregate or WORKERS
    training = Training(relays, transport, together)
    results = relays.cluster.run(training, consistency=consistency)
    expected = [float(pushes) for _, pushes in results]
    for counted, _ in results:
        assert counted.tolist() == [expected] * SERVERS
    assert relays.cuts >= CUTS[transport]
    assert sum(CUTS.values()) * len(CONSISTENCIES) >= LEAST_CUTS
    assert together is None or sum(expected) % (together * STEPS) == 0
