"""A program of a user who has installed Stratagem, and has no clone of it.

By itself it trains on a cluster that it starts; under `stratagem run` it is one of the workers.
"""

from __future__ import annotations

import os
import sys

import torch
from torch import nn

import stratagem
from stratagem_deploy import LocalCluster

WEIGHTS = torch.tensor([[1.0], [-2.0], [0.5]])
STEPS = 60


def train(resolver: stratagem.ClusterResolver | None = None) -> float:
    """Train a layer on what `WEIGHTS` gives; return the mean square of the last error."""
    torch.manual_seed(0)
    with stratagem.ParameterServerStrategy(resolver) as strategy:
        with strategy.scope():
            model = nn.Linear(3, 1)
        optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

        def step(features: torch.Tensor, targets: torch.Tensor) -> float:
            loss = (model(features) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return float(loss.item())

        for _ in range(STEPS):
            features = torch.randn(32, 3)
            loss = strategy.run(step, args=(features, features @ WEIGHTS))
        if strategy.extended.should_checkpoint and len(sys.argv) > 1:
            strategy.save(sys.argv[1])
    return float(loss)


if __name__ == "__main__":
    if "TF_CONFIG" in os.environ:
        print("trained", train() < 0.1)
    else:
        with LocalCluster(ps=2, workers=2) as cluster:
            print("trained", max(cluster.run(train)) < 0.1)
