"""Keras' `fit`, by itself and on servers."""

from __future__ import annotations

import os

import pytest

from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("keras", reason="Keras is not installed")

EPOCHS = 8
NOISE = 0.006
"""Of the error on 20,000 ratings, over seeds."""


def train(resolver: ClusterResolver) -> float:
    """One worker's program."""
    from examples.keras_movielens import train_on_servers

    return train_on_servers(resolver, epochs=EPOCHS)


@pytest.mark.cluster
@pytest.mark.filterwarnings("default")  # of the framework, about arrays
def test_two_workers_reach_the_error_of_keras_alone() -> None:
    from examples import keras_movielens as example

    plain = example.train_plainly(epochs=EPOCHS)
    assert plain < 0.93
    with LocalCluster(ps=2, workers=2, processes=True) as cluster:
        for error in cluster.run(train):
            assert error < plain + NOISE
