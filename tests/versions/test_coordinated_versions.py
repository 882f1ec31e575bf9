"""Versions of a program that has functions run by worker servers."""

from __future__ import annotations

import torch
from torch import nn

import stratagem
from stratagem.coordinator import ClusterCoordinator
from stratagem_deploy import LocalCluster
from tests.versions.follower import Follower


def test_a_coordinator_publishes_while_functions_run() -> None:
    with (
        LocalCluster(ps=2, worker_servers=2) as cluster,
        stratagem.ParameterServerStrategy(cluster.cluster_resolver) as strategy,
    ):
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            model = nn.Linear(4, 1)
        optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

        def replica_step() -> None:
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()

        def function() -> None:
            strategy.run(replica_step)

        versions: list[int] = []
        with strategy.publish_every(seconds=0.05) as publishing:
            while len({*versions}) < 4:
                coordinator.schedule(function)
                versions.append(publishing.version)
            coordinator.join()
        assert publishing.error is None
        last = strategy.publish()
        assert versions == sorted(versions) and versions[-1] < last
        spec = cluster.cluster_resolver.cluster_spec()
        token = cluster.cluster_resolver.cluster_token or ""
        for address in filter(None, spec.job_tasks("ps")):
            assert Follower(address, token).follow(10.0) == last
