"""The content of a hosted module's `state_dict()`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from tests.client.clusters import Cluster, running


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running() as cluster:
        yield cluster


def stepped(
    strategy: stratagem.ParameterServerStrategy,
) -> tuple[nn.Sequential, stratagem.DistributedOptimizer]:
    """A hosted model after a step of SGD that took each weight from 1 to 0."""
    with strategy.scope():
        model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU())
        nn.init.ones_(next(model.parameters()))
    sgd = torch.optim.SGD(model.parameters(), 1.0)
    optimizer = stratagem.DistributedOptimizer(sgd)

    def step() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    strategy.run(step)
    return model, optimizer


def test_it_has_the_values_after_the_last_step(cluster: Cluster) -> None:
    with cluster.strategy() as strategy:
        model, _ = stepped(strategy)
        assert model.state_dict()["0.weight"].tolist() == [[0.0, 0.0]]


def test_a_part_of_the_model_is_as_fresh(cluster: Cluster) -> None:
    with cluster.strategy() as strategy:
        model, _ = stepped(strategy)
        assert model[0].state_dict()["weight"].tolist() == [[0.0, 0.0]]


def test_it_is_left_alone_inside_a_replica(cluster: Cluster) -> None:
    """Values never change between forward and backward."""
    with cluster.strategy() as strategy:
        model, optimizer = stepped(strategy)
        model.load_state_dict({"0.weight": torch.ones(1, 2)})

        def replica() -> Any:
            before = model.state_dict()["0.weight"].tolist()
            optimizer.step()
            return before

        assert strategy.run(replica) == [[1.0, 1.0]]
        assert model.state_dict()["0.weight"].tolist() == [[0.0, 0.0]]


def test_a_closed_strategy_leaves_the_last_values_seen(cluster: Cluster) -> None:
    with cluster.strategy() as strategy:
        model, _ = stepped(strategy)
        model.state_dict()
    assert model.state_dict()["0.weight"].tolist() == [[0.0, 0.0]]


def test_copies_and_pickles_are_plain_modules(cluster: Cluster) -> None:
    with cluster.strategy() as strategy:
        model, _ = stepped(strategy)
        model.state_dict()
        copied = copy.deepcopy(model)
        pickled = pickle.loads(pickle.dumps(model))
    for other in (copied, pickled):
        assert other.state_dict()["0.weight"].tolist() == [[0.0, 0.0]]
