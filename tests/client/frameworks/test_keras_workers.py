"""Keras' `fit` with two workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stratagem import InvalidArgumentError, ParameterServerStrategy
from tests.client.clusters import running
from tests.client.frameworks.keras_models import BATCH, compiled, examples

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="Keras is not installed")
from stratagem.frameworks.keras import prepare  # noqa: E402 - where Keras is installed

# Of the framework, about arrays.
pytestmark = pytest.mark.filterwarnings("default")


def models(count: int, optimizer: Any, name: str = "dense") -> list[Any]:
    """Models for the workers, of which only the first one's weights count."""
    found = [compiled(name, optimizer) for _ in range(count)]
    for number, model in enumerate(found):
        model.set_weights([one + number for one in model.get_weights()])
    return found


def half(worker: int, name: str = "dense") -> tuple[Any, Any]:
    inputs, targets = examples(name)
    return inputs[worker::2], targets[worker::2]


def test_workers_in_step_train_as_one_with_larger_batches() -> None:
    plain, *ours = models(1, keras.optimizers.Adagrad, "towers") + models(
        2, keras.optimizers.Adagrad, "towers"
    )

    def train(strategy: ParameterServerStrategy, worker: int) -> list[Any]:
        prepare(strategy, ours[worker])
        mine = half(worker, "towers")
        ours[worker].fit(*mine, batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
        return [*ours[worker].get_weights()]

    inputs, targets = examples("towers")
    # What the workers' batches have together.
    order = [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 16, 18, 20, 22, 17, 19, 21, 23]
    batches = [order[:16], order[16:]]
    with running(2, num_workers=2) as cluster:
        first, second = cluster.run(train, consistency="sync")
    for _ in range(3):
        for batch in batches:
            plain.train_on_batch(inputs[batch], targets[batch])
    for one, other, wanted in zip(first, second, plain.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, wanted, atol=2e-6)


def test_all_stop_and_change_rates_when_the_chief_does() -> None:
    ours = models(2, lambda: keras.optimizers.SGD(0.01))

    def train(strategy: ParameterServerStrategy, worker: int) -> tuple[int, float]:
        prepare(strategy, ours[worker])
        # For the chief nothing is good enough, and for the other worker everything.
        unit = 1e9 if worker == 0 else -1e9
        callbacks = [
            keras.callbacks.EarlyStopping("loss", patience=3, min_delta=unit),
            keras.callbacks.ReduceLROnPlateau("loss", patience=2, min_delta=unit),
        ]
        settings = {"batch_size": BATCH, "epochs": 9, "callbacks": callbacks, "verbose": 0}
        history = ours[worker].fit(*half(worker), **settings).history
        return len(history["loss"]), float(ours[worker].optimizer.learning_rate.value)

    with running(1, num_workers=2) as cluster:
        (epochs, rate), other = cluster.run(train)
    assert (epochs, rate) == other
    assert 3 <= epochs < 9
    assert rate < 0.01


def test_the_chief_writes_files_and_its_weights_are_what_all_begin_with(tmp_path: Path) -> None:
    ours = models(2, lambda: keras.optimizers.SGD(0.0))
    wanted = ours[0].get_weights()

    def train(strategy: ParameterServerStrategy, worker: int) -> list[Any]:
        prepare(strategy, ours[worker])
        callbacks = [
            keras.callbacks.ModelCheckpoint(tmp_path / f"of{worker}.keras"),
            keras.callbacks.CSVLogger(tmp_path / f"of{worker}.csv"),
        ]
        ours[worker].fit(*half(worker), callbacks=callbacks, verbose=0)
        return [*ours[worker].get_weights()]

    with running(1, num_workers=2) as cluster:
        for found in cluster.run(train):
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(one, other)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["of0.csv", "of0.keras"]


@pytest.mark.parametrize(("consistency", "rate"), [("async", 0.1 * 0.5**4), ("sync", 0.1 * 0.5**2)])
def test_a_schedule_counts_updates_of_all_workers(consistency: str, rate: float) -> None:
    def optimizer() -> Any:
        return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))

    ours = models(2, optimizer)

    def train(strategy: ParameterServerStrategy, worker: int) -> float:
        prepare(strategy, ours[worker])
        inputs, targets = half(worker)
        for number in range(3):
            batch = slice(number * 4, number * 4 + 4)
            ours[worker].train_on_batch(inputs[batch], targets[batch])
        # Of the last step.
        (group,) = ours[worker].__dict__["_stratagem"]._optimizers[0].param_groups
        return float(group["lr"])

    with running(1, num_workers=2) as cluster:
        assert cluster.run(train, consistency=consistency) == pytest.approx([rate, rate])


def test_statistics_are_each_workers_own_or_the_mean() -> None:
    ours = models(2, keras.optimizers.SGD, "convolution")

    def train(strategy: ParameterServerStrategy, worker: int) -> list[Any]:
        prepare(strategy, ours[worker])
        ours[worker].fit(*half(worker, "convolution"), epochs=2, verbose=0)
        norm = ours[worker].layers[2]
        own = norm.moving_mean.numpy()
        strategy.barrier("then")
        return [own, norm.moving_mean.numpy()]

    with running(1, num_workers=2) as cluster:
        (first, same), (second, _) = cluster.run(train)
        assert not np.array_equal(first, second)
        assert np.array_equal(first, same)
    ours = models(2, keras.optimizers.SGD, "convolution")
    with running(1, num_workers=2) as cluster:
        (first, _), (second, _) = cluster.run(train, buffers="mean")
        assert np.array_equal(first, second)


def test_weights_that_each_worker_would_write_are_refused() -> None:
    ours = models(2, keras.optimizers.SGD)

    def train(strategy: ParameterServerStrategy, worker: int) -> str:
        prepare(strategy, ours[worker])
        best = keras.callbacks.EarlyStopping(restore_best_weights=True)
        with pytest.raises(InvalidArgumentError) as caught:
            ours[worker].fit(*half(worker), callbacks=[best], verbose=0)
        return str(caught.value)

    with running(1, num_workers=2) as cluster:
        for message in cluster.run(train):
            assert "restore_best_weights=True" in message
