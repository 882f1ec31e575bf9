"""Pushes that a program does not wait for: one at most, and none is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stratagem import DistributedOptimizer, ParameterServerStrategy
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._ps_client.checkpoint_steps import CheckpointSteps
from stratagem._ps_client.requests import reads
from stratagem_proto.errors import InvalidArgumentError
from tests.client.clusters import Cluster, running
from tests.client.parameter_server.training import (
    batch,
    bytes_of,
    loss_of,
    make_model,
)
from tests.faults import CutAt, FaultyProxy, Verdict
from tests.waiting import eventually

STEPS = 8


@pytest.fixture
def strategy() -> Iterator[ParameterServerStrategy]:
    with running(2) as cluster, cluster.strategy(pushes_in_flight=1) as strategy:
        yield strategy


class Counting:
    """A weight to which each step adds one."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.module = nn.Linear(1, 1, bias=False)
            nn.init.zeros_(self.module.weight)
        sgd = torch.optim.SGD(self.module.parameters(), lr=1.0)
        self.optimizer = DistributedOptimizer(sgd)

    def _step(self) -> float:
        begun_with = self.module.weight.item()
        self.optimizer.zero_grad()
        self.module(torch.full((1, 1), -1.0)).sum().backward()
        self.optimizer.step()
        return begun_with

    def run(self, steps: int = 1) -> list[float]:
        """Takes steps; returns what each began with."""
        return [self.strategy.run(self._step) for _ in range(steps)]

    def refuse_next(self) -> None:
        """Has a push be refused by the server."""
        self.optimizer.param_groups[0]["lr"] = -1.0
        self.run()
        self.optimizer.param_groups[0]["lr"] = 1.0


def delayed(steps: int) -> list[bytes]:
    """What Adam makes of gradients at the values before the last step."""
    module, stale = make_model(), make_model()
    adam = torch.optim.Adam(module.parameters(), lr=0.02)
    newest: Sequence[torch.Tensor] = [p.detach().clone() for p in module.parameters()]
    for number in range(steps):
        _set(stale, newest)
        newest = [p.detach().clone() for p in module.parameters()]
        stale.zero_grad()
        loss_of(stale, batch(number)).backward()
        for parameter, other in zip(module.parameters(), stale.parameters(), strict=True):
            parameter.grad = other.grad
        adam.step()
    return bytes_of(module)


def _set(module: nn.Module, values: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), values, strict=True):
            parameter.copy_(value)


def trained(strategy: ParameterServerStrategy, before: Callable[[int], Any]) -> Any:
    with strategy.scope():
        module = make_model()
    optimizer = DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.02))

    def step(inputs: torch.Tensor) -> None:
        # In place, while the push before may be sent again.
        optimizer.zero_grad(set_to_none=False)
        loss_of(module, inputs).backward()
        optimizer.step()

    for number in range(STEPS):
        before(number)
        strategy.run(step, args=(batch(number),))
    strategy.refresh()
    return bytes_of(module)


def test_a_step_lacks_its_workers_last_push_and_no_other(
    strategy: ParameterServerStrategy,
) -> None:
    training = Counting(strategy)
    assert training.run(5) == [0, 0, 1, 2, 3]
    strategy.flush()
    assert training.run(2) == [5, 5]


def test_the_bytes_are_those_of_a_loop_whose_gradients_are_a_step_late(
    strategy: ParameterServerStrategy,
) -> None:
    assert trained(strategy, bool) == delayed(STEPS)


@pytest.mark.parametrize("verdict", [Verdict.CUT_WITHIN, Verdict.CUT_AFTER])
def test_a_push_in_flight_survives_its_connection_and_is_applied_once(
    verdict: Verdict,
) -> None:
    with running(1) as cluster, FaultyProxy(cluster.servers[0]) as proxy:
        other = Cluster([proxy.address], 1)
        with other.strategy(pushes_in_flight=1) as strategy:

            def cut(number: int) -> None:
                proxy.judge = CutAt(number % 4, verdict)

            assert trained(strategy, cut) == delayed(STEPS)
        assert proxy.cuts > 3


def test_a_push_goes_on_after_who_waited_was_interrupted_in_its_answer(
    strategy: ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted: list[bytes] = []
    takes_in = reads._answer

    def interrupted_once(*args: Any) -> reads.Answer:
        if not interrupted:
            *_, responses = args
            interrupted.append(next(responses))
            raise KeyboardInterrupt
        return takes_in(*args)

    monkeypatch.setattr(reads, "_answer", interrupted_once)
    training, taken = Counting(strategy), 0
    for _ in range(STEPS):
        with suppress(KeyboardInterrupt):
            training.run()
            taken += 1
    strategy.refresh()
    assert interrupted
    assert training.module.weight.item() == taken == STEPS - 1


def test_what_looks_from_outside_of_a_replica_waits(
    strategy: ParameterServerStrategy, tmp_path: Path
) -> None:
    training = Counting(strategy)
    training.run()
    assert training.module.state_dict()["weight"].item() == 1
    training.run()
    strategy.save(tmp_path).result()
    training.run()
    strategy.restore(tmp_path)
    assert training.module.weight.item() == 2
    training.run()
    strategy.barrier()
    assert training.module.weight.item() == 3


@pytest.mark.parametrize("look", [ParameterServerStrategy.flush, ParameterServerStrategy.refresh])
def test_the_error_of_a_push_is_raised_by_what_waits_for_it_and_once(
    strategy: ParameterServerStrategy, look: Callable[[ParameterServerStrategy], None]
) -> None:
    training = Counting(strategy)
    training.run()
    training.refuse_next()
    with pytest.raises(InvalidArgumentError, match="lr"):
        look(strategy)
    look(strategy)
    assert training.run(2) == [1, 1]


def test_the_error_of_a_push_is_raised_by_the_next_step_or_the_end() -> None:
    with (
        running(1) as cluster,
        pytest.raises(InvalidArgumentError, match="lr"),
        cluster.strategy(pushes_in_flight=1) as strategy,
    ):
        training = Counting(strategy)
        training.refuse_next()
        with pytest.raises(InvalidArgumentError, match="lr"):
            training.run()
        strategy.refresh()
        assert training.run(3) == [0, 0, 1]
        training.refuse_next()


def test_other_steps_wait_for_their_push(strategy: ParameterServerStrategy) -> None:
    training = Counting(strategy)
    training.run(2)
    strategy.set_consistency("sync")
    assert training.run(4)[1:] == [3, 4, 5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pushes_in_flight": 2}, "0 or 1"),
        ({"pushes_in_flight": 1, "consistency": "sync"}, 'consistency="async"'),
        ({"pushes_in_flight": 1, "fused_steps": False}, "fused_steps=False"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Cluster(["ps.invalid:1"], 1).strategy(**settings)


def test_a_push_that_is_left_alone_is_answered_all_the_same(
    strategy: ParameterServerStrategy,
) -> None:
    Counting(strategy).run()
    # Who saves a checkpoint waits for this.
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    steps = extended._store.servers.steps
    eventually(lambda: steps.finished_step().step == steps.begun)
    assert steps.begun


def test_a_large_push_is_sent_beside(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        module = nn.Linear(1024, 512, bias=False)
        nn.init.zeros_(module.weight)
    optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))

    def step() -> float:
        optimizer.zero_grad(set_to_none=False)
        module(torch.full((1, 1024), -1.0)).sum().backward()
        optimizer.step()
        return module.weight[0, 0].item()

    assert [strategy.run(step) for _ in range(4)] == [0, 1, 2, 3]
    strategy.refresh()
    assert module.weight.eq(4).all()


def test_a_step_is_over_once_its_push_is_answered() -> None:
    steps = CheckpointSteps()
    with steps.step_scope():
        first = steps.set_apart()
        steps.keep(b"first")
    with steps.step_scope():
        steps.keep(b"second")
        assert steps.finished_step() == (first - 1, b"")
        with steps.taking_apart(first):
            assert steps.current == first
        assert steps.finished_step() == (first, b"first")
    assert steps.finished_step() == (first + 1, b"second")
