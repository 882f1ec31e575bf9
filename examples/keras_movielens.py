"""A recommender of Keras on MovieLens-100K, trained by `fit`, by itself and on parameter servers.

Every worker of the cluster runs this file:

    stratagem run --ps 2 --workers 2 examples/keras_movielens.py [seed]

A rating is an offset, plus what the user and the film add, plus the product of their two vectors.
The vectors are tables, of which each step moves the rows of its batch.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "torch")  # before Keras is imported
import keras
from keras import layers

import stratagem
from stratagem.cluster_resolver import ClusterResolver, TFConfigClusterResolver
from stratagem.frameworks import part
from stratagem.frameworks.keras import prepare

# Chosen by the error on 8,000 validation ratings of the training part.
EPOCHS, BATCH, RATE, DECAY, DROPOUT = 30, 1000, 0.02, 0.1, 0.3
USERS, FILMS, DIM, HELD_OUT = 944, 1683, 16, 20_000


def load_ratings() -> tuple[Any, Any]:
    """Rows of user, film and rating, int64 (20000, 3) and (80000, 3): held out, and to train on."""
    recbole = find_spec("recbole")
    if recbole is None or not recbole.submodule_search_locations:
        raise SystemExit("MovieLens is missing: pip install --no-deps recbole==1.2.1")
    folder = Path(recbole.submodule_search_locations[0]) / "dataset_example/ml-100k"
    rows = np.loadtxt(folder / "ml-100k.inter", np.int64, skiprows=1, usecols=(0, 1, 2))
    shuffled = np.random.default_rng(2020).permutation(rows)
    return shuffled[:HELD_OUT], shuffled[HELD_OUT:]


def vectors(rows: int, dim: int, name: str) -> Any:
    """A table, the rows of a batch of which are held small."""
    start = keras.initializers.RandomNormal(stddev=0.03)
    small = keras.regularizers.L2(DECAY)
    return layers.Embedding(rows, dim, start, activity_regularizer=small, name=name)


def build(epochs: int) -> Any:
    """A compiled model of (user, film) pairs."""
    ids = keras.Input([2], dtype="int32")
    user, film = ids[:, 0], ids[:, 1]
    liked = layers.Dropout(DROPOUT)(vectors(USERS, DIM, "users")(user))
    affinity = layers.Dot(1)([liked, vectors(FILMS, DIM, "films")(film)])
    bias = vectors(USERS, 1, "user_bias")(user) + vectors(FILMS, 1, "film_bias")(film)
    model = keras.Model(ids, layers.Rescaling(1.0, offset=3.53)(affinity + bias))
    error = keras.metrics.RootMeanSquaredError("rmse")
    steps = epochs * (100_000 - HELD_OUT) // BATCH  # of all workers
    rate = keras.optimizers.schedules.CosineDecay(RATE, steps)
    model.compile(keras.optimizers.Adam(rate), loss="mse", metrics=[error])
    return model


def fit(model: Any, ratings: Any, held_out: Any, epochs: int) -> float:
    """Train a model; return its error on what was held out."""
    pairs, stars = ratings[:, :2], ratings[:, 2:].astype("float32")
    model.fit(pairs, stars, batch_size=BATCH, epochs=epochs, verbose=2)
    predicted = model.predict(held_out[:, :2], batch_size=4000, verbose=0).clip(1, 5)
    return float(np.sqrt(np.mean((predicted - held_out[:, 2:]) ** 2)))


def train_plainly(seed: int = 0, epochs: int = EPOCHS) -> float:
    """Train by Keras alone; return the error on the held-out ratings."""
    keras.utils.set_random_seed(seed)
    held_out, ratings = load_ratings()
    model = build(epochs)
    return fit(model, ratings, held_out, epochs)


def train_on_servers(resolver: ClusterResolver, seed: int = 0, epochs: int = EPOCHS) -> float:
    """One worker's whole program; return the error on the held-out ratings."""
    strategy = stratagem.ParameterServerStrategy(resolver)
    keras.utils.set_random_seed(1000 * seed + (resolver.task_id or 0))
    held_out, ratings = load_ratings()
    model = build(epochs)
    prepare(strategy, model, lazy=True)
    ratings = ratings[part(strategy, ratings).indices]
    return fit(model, ratings, held_out, epochs)


def main() -> None:
    """Runs the worker that TF_CONFIG describes."""
    parser = ArgumentParser(description=main.__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    resolver = TFConfigClusterResolver()
    error = train_on_servers(resolver, parser.parse_args().seed)
    print(f"worker {resolver.task_id or 0}: test RMSE {error:.4f}")


if __name__ == "__main__":
    main()
