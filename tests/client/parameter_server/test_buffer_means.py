"""Running statistics of several workers, and their mean."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from stratagem import InvalidArgumentError, ParameterServerStrategy
from stratagem.partitioners import FixedShardsPartitioner
from tests.client.clusters import Cluster

SETTINGS: dict[str, dict[str, Any]] = {
    "as they are": {},
    "in shards": {"variable_partitioner": FixedShardsPartitioner(2)},
    "in sync": {"consistency": "sync"},
}


def built(strategy: ParameterServerStrategy) -> Any:
    with strategy.scope():
        return nn.Sequential(nn.BatchNorm1d(2, momentum=1.0), nn.Linear(2, 1))


def means(strategy: ParameterServerStrategy, worker: int) -> list[Any]:
    """Return running means before and after each of three barriers."""
    return observed(strategy, built(strategy), worker)


def observed(strategy: ParameterServerStrategy, model: Any, worker: int) -> list[Any]:
    norm, found = model[0], []
    for number in range(3):
        batch = torch.full((4, 2), 10.0 * number + worker)
        strategy.run(lambda batch: model(batch).sum().item(), args=(batch,))
        found.append(norm.running_mean.tolist())
        strategy.barrier(f"round_{number}")
        found.append(norm.running_mean.tolist())
    strategy.barrier("over")
    assert norm.num_batches_tracked == 3
    return found


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_buffers_become_their_mean_at_a_barrier(cluster: Cluster, settings: dict[str, Any]) -> None:
    found = cluster.run(means, buffers="mean", **settings)
    for worker, seen in enumerate(found):
        before = [[10.0 * number + worker] * 2 for number in range(3)]
        after = [[10.0 * number + 0.5] * 2 for number in range(3)]
        assert seen[::2] == before
        assert seen[1::2] == after


def test_buffers_stay_with_their_worker_by_default(cluster: Cluster) -> None:
    found = cluster.run(means)
    for worker, seen in enumerate(found):
        assert seen[1::2] == [[10.0 * number + worker] * 2 for number in range(3)]


def test_a_checkpoint_after_a_barrier_has_the_mean(cluster: Cluster, tmp_path: Any) -> None:
    def save(strategy: ParameterServerStrategy, worker: int) -> None:
        model = built(strategy)
        observed(strategy, model, worker)
        strategy.save(tmp_path)
        strategy.barrier("saved")

    cluster.run(save, buffers="mean")
    with cluster.strategy(buffers="own") as strategy:
        model = built(strategy)
        strategy.restore(tmp_path, strict=False)
        assert model[0].running_mean.tolist() == [20.5, 20.5]


def test_buffers_are_kept_or_averaged(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgumentError, match='"own" or "mean", not'):
        cluster.strategy(buffers="sum")


def test_a_worker_that_is_started_again_averages_with_the_others(cluster: Cluster) -> None:
    def observe(strategy: ParameterServerStrategy, model: Any, value: float, name: str) -> float:
        batch = torch.full((4, 2), value)
        strategy.run(lambda: model(batch).sum().item())
        strategy.barrier(name)
        return float(model[0].running_mean[0].item())

    def work(worker: int) -> list[float]:
        settings: dict[str, Any] = {"buffers": "mean", "peer_seconds": 60}
        found = []
        with cluster.strategy(worker, **settings) as strategy:
            model = built(strategy)
            strategy.barrier("built")
            found.append(observe(strategy, model, 10.0 + worker, "first"))
            if worker == 0:
                found.append(observe(strategy, model, 20.0, "second"))
                found.append(observe(strategy, model, 30.0, "third"))
                return found
        with cluster.strategy(worker, **settings) as strategy:
            model = built(strategy)
            strategy.barrier("built")
            found.append(observe(strategy, model, 21.0, "second"))
            found.append(observe(strategy, model, 31.0, "third"))
        return found

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(work, range(2))) == [[10.5, 20.5, 30.5]] * 2
