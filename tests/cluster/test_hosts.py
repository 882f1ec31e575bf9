"""Loops on hosts that are processes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch

from stratagem import TPUStrategy, WorkerLostError
from stratagem_deploy import LocalCluster
from tests.client.hosts.training import (
    Batch,
    Trained,
    global_batches,
    parameters_of_cores,
    plainly_trained,
)
from tests.cluster.interventions import beside
from tests.waiting import eventually

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(ps=0, worker_servers=2, processes=True) as running:
        yield running


@pytest.fixture
def strategy(cluster: LocalCluster) -> Iterator[TPUStrategy]:
    strategy = TPUStrategy(cluster.cluster_resolver, steps_per_run=100)
    yield strategy
    strategy.extended.disconnect()


def test_a_hundred_steps_are_one_call_and_leave_the_hosts_equal(
    strategy: TPUStrategy,
) -> None:
    batches = global_batches(100)
    trained = Trained(strategy)
    run = strategy.extended.experimental_run_steps_on_iterator
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    context = run(trained.step, iterator, strategy.steps_per_run)
    assert strategy.extended.calls_per_host == 1
    assert torch.isfinite(context.last_step_outputs["loss"])
    one, other = parameters_of_cores(strategy, trained.model)
    assert torch.equal(one, other)
    plain, _ = plainly_trained(batches)
    pairs = zip(trained.model.parameters(), plain.parameters(), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def _endless() -> Iterator[Batch]:
    return cycle(global_batches(1))


def test_training_goes_on_from_a_checkpoint_when_a_host_was_lost(
    cluster: LocalCluster, strategy: TPUStrategy, tmp_path: Path
) -> None:
    trained = Trained(strategy)
    run = strategy.extended.experimental_run_steps_on_iterator
    iterator = iter(strategy.experimental_distribute_dataset(global_batches(5)))
    run(trained.step, iterator, 5)
    strategy.save(tmp_path / "saved.safetensors")
    saved = [each.detach().clone() for each in trained.model.parameters()]
    begun = tmp_path / "begun"

    def step(context: Any, inputs: Any) -> None:
        begun.touch()
        trained.step(context, inputs)

    def kill() -> None:
        eventually(begun.exists)
        cluster.kill("worker", 1)

    endless = iter(strategy.experimental_distribute_dataset(_endless))
    lost = r"task:1.*restore the last checkpoint"
    with beside(kill), pytest.raises(WorkerLostError, match=lost):
        run(step, endless, 10**6)
    cluster.restart("worker", 1)
    strategy.extended.connect()
    strategy.restore(tmp_path / "saved.safetensors")
    for found in parameters_of_cores(strategy, trained.model):
        expected = torch.cat([each.flatten() for each in saved])
        assert torch.equal(found, expected)
    iterator = iter(strategy.experimental_distribute_dataset(global_batches(5)))
    run(trained.step, iterator, 5)
    state = trained.optimizer.state_dict()["state"]
    assert {int(each["step"]) for each in state.values()} == {10}
