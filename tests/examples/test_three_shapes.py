"""One training function under a coordinator, between graphs, and in one process."""

from __future__ import annotations

import pytest
import torch

import stratagem
from examples import movielens
from stratagem_deploy import LocalCluster
from tests.client.clusters import running
from tests.client.coordinator.coordination import coordinating
from tests.demo import CLOSE, RMSE_OF_FEW_EPOCHS
from tests.examples.three_shapes import (
    SHORTENED,
    Course,
    train_as_worker,
    train_by_workers,
    train_here,
)
from tests.nests import same_bytes

SHORT = Course(ratings=300, batch=100, epochs=2)


def test_with_one_worker_the_same_model_comes_of_each() -> None:
    with stratagem.ParameterServerStrategy() as alone:
        here = train_here(alone, SHORT)
    with running(num_servers=2) as cluster:
        (between,) = cluster.run(lambda strategy, _: train_here(strategy, SHORT))
    with coordinating(num_workers=1, num_servers=2) as coordination:
        coordinated = train_by_workers(coordination.strategy, SHORT)

    assert same_bytes(between.state, here.state)
    assert same_bytes(coordinated.state, here.state)
    assert between.error == coordinated.error == here.error
    torch.manual_seed(0)
    untrained = movielens.Recommender().state_dict()
    assert not same_bytes(here.state, untrained)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_with_two_workers_the_error_is_that_of_one_process() -> None:
    with LocalCluster(ps=2, workers=2, processes=True) as cluster:
        between = cluster.run(train_as_worker, SHORTENED)
    with (
        LocalCluster(ps=2, worker_servers=2, processes=True) as cluster,
        stratagem.ParameterServerStrategy(cluster.cluster_resolver) as strategy,
    ):
        coordinated = train_by_workers(strategy, SHORTENED)

    assert between == [pytest.approx(RMSE_OF_FEW_EPOCHS, abs=CLOSE)] * 2
    assert coordinated.error == pytest.approx(RMSE_OF_FEW_EPOCHS, abs=CLOSE)
