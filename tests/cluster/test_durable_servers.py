"""Servers that are killed and go on from their logs, as if nothing had happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import stratagem
from stratagem import ParameterServerStrategy, Variable
from stratagem_deploy import LocalCluster
from tests.cluster.interventions import beside

pytestmark = pytest.mark.cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two processes with a log each."""
    with LocalCluster(
        2, workers=0, processes=True, durability="log", durability_folder=tmp_path
    ) as cluster:
        yield cluster


def restart(cluster: LocalCluster, task: int) -> None:
    cluster.kill("ps", task)
    cluster.restart("ps", task)


def test_a_program_goes_on_with_a_killed_server_and_is_not_warned(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with ParameterServerStrategy(cluster.cluster_resolver) as strategy:
        with strategy.scope():
            counters = [Variable(0.0, name=f"on{server}") for server in range(2)]

        def step() -> None:
            for counter in counters:
                counter.assign_add(1.0)

        for _ in range(5):
            strategy.run(step)
        steps = 5
        with beside(lambda: restart(cluster, 1)) as killing:
            while killing.is_alive():
                strategy.run(step)
                steps += 1
        strategy.run(step)
        assert [float(one.numpy()) for one in counters] == [steps + 1.0] * 2
        assert "checkpoint" not in caplog.text


def test_optimizers_go_on_with_the_bits_that_they_had(cluster: LocalCluster) -> None:
    start = torch.tensor([1.0, 2.0])
    plain = torch.nn.Parameter(start.clone())
    adam = torch.optim.Adam([plain], lr=0.1)
    with ParameterServerStrategy(cluster.cluster_resolver) as strategy:
        with strategy.scope():
            module = torch.nn.ParameterList([start.clone()])
        optimizer = stratagem.DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.1))

        def step(gradient: float) -> None:
            module[0].grad = torch.full((2,), gradient)
            optimizer.step()

        for number in range(6):
            plain.grad = torch.full((2,), float(number))
            adam.step()
            strategy.run(step, (float(number),))
            if number % 2:
                restart(cluster, 0)
        strategy.refresh()
        assert torch.equal(module[0], plain)
