"""Keras' `fit` with one worker, which gives what it gives alone."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratagem
from stratagem import (
    ContextError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    ParameterServerStrategy,
)
from tests.client.clusters import running
from tests.client.frameworks.keras_models import (
    MODELS,
    compiled,
    examples,
    require_equal,
    trained,
    trained_both,
)
from tests.pages import ROOT

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="Keras is not installed")
from stratagem.frameworks.keras import prepare  # noqa: E402 - where Keras is installed

# Of the framework, about arrays.
pytestmark = pytest.mark.filterwarnings("default")

Make = Callable[[], Any]


@pytest.fixture
def strategy() -> Iterator[ParameterServerStrategy]:
    with running(2) as cluster, cluster.strategy() as strategy:
        yield strategy


def of(name: str, *args: Any, **settings: Any) -> Make:
    return lambda: getattr(keras.optimizers, name)(*args, **settings)


OPTIMIZERS: Mapping[str, Make] = {
    "SGD": of("SGD", 0.05),
    "SGD with momentum": of("SGD", 0.05, momentum=0.9),
    "SGD of Nesterov": of("SGD", 0.05, momentum=0.9, nesterov=True),
    "Adam": of("Adam", 0.02),
    "AMSGrad": of("Adam", 0.02, amsgrad=True),
    "AdamW": of("AdamW", 0.02, weight_decay=0.1),
    "Adagrad": of("Adagrad", 0.1),
    "Adagrad with decay": of("Adagrad", 0.1, weight_decay=0.1),
    "RMSprop": of("RMSprop", 0.01),
    "centered RMSprop": of("RMSprop", 0.01, momentum=0.5, centered=True),
    "Adamax": of("Adamax", 0.02),
    "Nadam": of("Nadam", 0.02),
    "Adadelta": of("Adadelta", 1.0),
    "Lion": of("Lion", 0.005),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_worker_ends_with_the_weights_of_keras(
    strategy: ParameterServerStrategy, optimizer: str, model: str
) -> None:
    require_equal(*trained_both(strategy, model, OPTIMIZERS[optimizer]))


SETTINGS: Mapping[str, Make] = {
    "clipnorm": of("Adagrad", 0.1, clipnorm=0.05),
    "clipvalue": of("SGD", 0.1, clipvalue=0.01),
    "global_clipnorm": of("Adagrad", 0.1, global_clipnorm=0.1),
    "loss_scale_factor": of("SGD", 0.1, loss_scale_factor=16.0),
    "gradient_accumulation_steps": of("Adam", 0.02, gradient_accumulation_steps=2),
    "accumulation without state": of("SGD", 0.1, gradient_accumulation_steps=2),
    "momentum that lives through a schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), momentum=0.9
    ),
    "a function for a rate": of("SGD", lambda: 0.03),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_optimizers_do_what_they_do_in_keras(
    strategy: ParameterServerStrategy, setting: str
) -> None:
    require_equal(*trained_both(strategy, "towers", SETTINGS[setting]))


def test_what_is_excluded_from_weight_decay_does_not_decay(
    strategy: ParameterServerStrategy,
) -> None:
    def make() -> Any:
        optimizer = keras.optimizers.Adagrad(0.1, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["bias", "embeddings"])
        return optimizer

    plain, ours = trained_both(strategy, "towers", make)
    require_equal(plain, ours)
    assert tables_of(strategy) == {"rows.embeddings.weight", "others.embeddings.weight"}


def tables_of(strategy: ParameterServerStrategy) -> set[str]:
    placements = strategy.extended.variable_placements()
    found = {one.name for one in placements if one.name.endswith("embeddings.weight")}
    return found


def test_adam_steps_the_rows_of_a_batch_where_that_is_asked_for(
    strategy: ParameterServerStrategy,
) -> None:
    ids = np.tile(np.arange(9), 16).reshape(24, 6)
    targets = np.random.default_rng(0).normal(size=(24, 1))
    models = [compiled("towers", OPTIMIZERS["Adam"]) for _ in range(2)]
    prepare(strategy, models[1], lazy=True)
    for model in models:
        # Each batch has each row, so that there are none to be left alone.
        model.fit(ids, targets, batch_size=8, epochs=3, shuffle=False, verbose=0)
    require_equal(*models)
    assert tables_of(strategy) == {"rows.embeddings.weight", "others.embeddings.weight"}
    before = models[1].get_layer("others").get_weights()[0]
    models[1].fit(np.zeros_like(ids), targets, batch_size=8, verbose=0)
    after = models[1].get_layer("others").get_weights()[0]
    assert not np.array_equal(before[0], after[0])
    assert np.array_equal(before[1:], after[1:])


def test_a_step_moves_the_rows_of_its_batch_alone(strategy: ParameterServerStrategy) -> None:
    layers = keras.layers
    model = keras.Sequential([keras.Input([2]), layers.Embedding(50_000, 8), layers.Flatten()])
    model.compile("adagrad", loss="mse")
    prepare(strategy, model)
    ids, targets = np.arange(64).reshape(32, 2), np.zeros((32, 16))
    model.fit(ids, targets, batch_size=8, verbose=0)
    before = strategy.traffic()
    model.fit(ids, targets, batch_size=8, verbose=0)
    moved = strategy.traffic() - before
    assert moved.sent_bytes + moved.received_bytes < 50_000  # the table has 1,600,000


def test_a_large_table_that_moves_whole_is_told_of(
    strategy: ParameterServerStrategy, caplog: pytest.LogCaptureFixture
) -> None:
    model = keras.Sequential([keras.Input([2]), keras.layers.Embedding(50_000, 8)])
    model.compile("adam", loss="mse")
    prepare(strategy, model)
    assert "Adam moves rows" in caplog.text


@pytest.mark.parametrize("optimizer", ["Adam", "SGD"])
def test_several_steps_per_execution_are_so_many_steps(
    strategy: ParameterServerStrategy, optimizer: str
) -> None:
    plain = compiled("towers", OPTIMIZERS[optimizer], metrics=["mae"])
    ours = compiled("towers", OPTIMIZERS[optimizer], metrics=["mae"], steps_per_execution=2)
    prepare(strategy, ours)
    held_out = examples("towers")
    wanted, found = (trained(m, "towers", validation_data=held_out) for m in (plain, ours))
    assert wanted.keys() == found.keys() == {"loss", "mae", "val_loss", "val_mae"}
    for key, values in wanted.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-4, err_msg=key)
    require_equal(plain, ours)
    plain_results, results = (m.evaluate(*held_out, batch_size=5, verbose=0) for m in (plain, ours))
    np.testing.assert_allclose(results, plain_results, rtol=1e-4)
    np.testing.assert_allclose(
        ours.predict(held_out[0], batch_size=5, verbose=0),
        plain.predict(held_out[0], batch_size=5, verbose=0),
        atol=1e-5,
    )


@pytest.mark.parametrize(("name", "optimizer"), [("convolution", "Adam"), ("towers", "Adagrad")])
def test_frozen_layers_stay_and_train_once_they_are_thawed(
    strategy: ParameterServerStrategy, name: str, optimizer: str
) -> None:
    plain, ours = (compiled(name, OPTIMIZERS[optimizer]) for _ in range(2))
    prepare(strategy, ours)
    for is_trainable in (True, False, True):
        for model in plain, ours:
            model.layers[1].trainable = model.layers[2].trainable = is_trainable
            model.compile(OPTIMIZERS[optimizer](), loss="mse")
            trained(model, name, epochs=1)
        require_equal(plain, ours)
    names = [one.name for one in strategy.extended.variable_placements()]
    numbers = {name.split("/")[1][-2:] for name in names if "/" in name}
    assert numbers == {"_3"}  # the state of the optimizers before is gone


def test_weights_that_are_set_are_trained_further(strategy: ParameterServerStrategy) -> None:
    plain, ours = (compiled("towers", OPTIMIZERS["SGD"]) for _ in range(2))
    prepare(strategy, ours)
    trained(ours, "towers")
    weights = [np.full_like(one, 0.1) for one in plain.get_weights()]
    for model in plain, ours:
        model.set_weights(weights)
        trained(model, "towers", epochs=1, shuffle=False)
    plain.optimizer._iterations.assign(ours.optimizer._iterations)
    require_equal(plain, ours)


def test_callbacks_see_and_set_what_they_do_in_keras(
    strategy: ParameterServerStrategy, tmp_path: Path
) -> None:
    callbacks = keras.callbacks

    def schedule(epoch: int, rate: float) -> float:
        return rate / (1 + epoch)

    models = [compiled("sequence", OPTIMIZERS["SGD with momentum"]) for _ in range(2)]
    prepare(strategy, models[1])
    histories = []
    for number, model in enumerate(models):
        each = [
            callbacks.LearningRateScheduler(schedule),
            callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=1.0),
            callbacks.EarlyStopping(patience=2, min_delta=1.0, restore_best_weights=True),
            callbacks.ModelCheckpoint(tmp_path / f"{number}.keras"),
        ]
        settings: dict[str, Any] = {
            "epochs": 9,
            "callbacks": each,
            "validation_data": examples("sequence"),
        }
        histories.append(trained(model, "sequence", **settings))
    for key, values in histories[0].items():
        np.testing.assert_allclose(histories[1][key], values, rtol=1e-4, err_msg=key)
    assert 1 < len(histories[0]["loss"]) < 9
    require_equal(*models)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the state of the optimizer is elsewhere
        saved = [keras.models.load_model(tmp_path / f"{number}.keras") for number in range(2)]
    for one, other in zip(saved[0].get_weights(), saved[1].get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_checkpoint_has_weights_statistics_state_and_counters(tmp_path: Path) -> None:
    def make() -> Any:
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.8)
        return keras.optimizers.SGD(schedule, momentum=0.9)

    settings: dict[str, Any] = {"epochs": 1, "shuffle": False}
    plain, first, second = (compiled("convolution", make) for _ in range(3))
    with running(2) as cluster, cluster.strategy() as strategy:
        prepare(strategy, first)
        trained(first, "convolution", **settings)
        strategy.save(tmp_path)
    with running(3) as cluster, cluster.strategy() as strategy:
        prepare(strategy, second)
        strategy.restore(tmp_path)
        trained(second, "convolution", **settings)
        for _ in range(2):
            trained(plain, "convolution", **settings)
        require_equal(plain, second)


def test_a_step_of_ones_own_trains_on_servers(strategy: ParameterServerStrategy) -> None:
    class Own(keras.Model):  # type: ignore[misc, name-defined] # its types are not read
        def __init__(self) -> None:
            super().__init__()
            self.layer = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.layer(inputs)

        def train_step(self, data: Any) -> Any:
            inputs, targets = map(keras.ops.convert_to_tensor, data[:2])
            self.zero_grad()
            loss = (self(inputs) - targets).square().mean()
            loss.backward()
            weights = self.trainable_weights
            self.optimizer.apply([one.value.grad for one in weights], weights)
            return {"loss": loss.item()}

    found = []
    for on_servers in (False, True):
        keras.utils.set_random_seed(1)
        model = Own()
        model.compile(OPTIMIZERS["Nadam"]())
        if on_servers:
            prepare(strategy, model)
        for _ in range(3):
            model.train_on_batch(*examples())
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_without_a_cluster_keras_trains_alone(tmp_path: Path) -> None:
    strategy = ParameterServerStrategy()
    plain, ours = (compiled("towers", OPTIMIZERS["Lion"]) for _ in range(2))
    prepare(strategy, ours)
    for model in plain, ours:
        trained(model, "towers")
    for one, other in zip(plain.get_weights(), ours.get_weights(), strict=True):
        assert np.array_equal(one, other)


def test_the_program_beside_that_of_tensorflow_trains(
    strategy: ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/guide/frameworks.md").read_text()
    (program,) = re.findall(r"^```python title=\"Each worker.*?\n(.*?)^```", page, re.DOTALL | re.M)
    monkeypatch.setattr(stratagem, "ParameterServerStrategy", lambda: strategy)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program, "frameworks.md", "exec"), names)
    assert len(names["model"].history.history["loss"]) == 5
    assert len(strategy.extended.variable_placements()) == 4


# What is refused.

REFUSED: Mapping[str, Make] = {
    "Lamb": of("Lamb"),
    "Ftrl": of("Ftrl"),
    "Adafactor": of("Adafactor"),
    "Muon": of("Muon"),
    "use_ema": of("SGD", use_ema=True),
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
    "Mine": lambda: type("Mine", (keras.optimizers.SGD,), {})(),
}


def test_rows_that_cannot_be_left_alone_are_not(strategy: ParameterServerStrategy) -> None:
    model = compiled("towers", OPTIMIZERS["AMSGrad"])
    with pytest.raises(InvalidArgumentError, match="Adam moves all rows of 'rows/embeddings'"):
        prepare(strategy, model, lazy=True)


@pytest.mark.parametrize("name", REFUSED)
def test_optimizers_without_a_counterpart_are_refused_by_name(
    strategy: ParameterServerStrategy, name: str
) -> None:
    model = compiled("dense", REFUSED[name])
    with pytest.raises(InvalidArgumentError, match=name):
        prepare(strategy, model)
    trained(model, "dense", epochs=1)  # as before


def test_what_writes_weights_besides_the_optimizer_is_refused(
    strategy: ParameterServerStrategy,
) -> None:
    limited = keras.layers.Dense(1, kernel_constraint="max_norm", name="limited")
    model = keras.Sequential([keras.Input([6]), limited])
    model.compile("sgd", loss="mse")
    with pytest.raises(InvalidArgumentError, match="limited/kernel' has a constraint"):
        prepare(strategy, model)


def test_compiled_steps_and_backups_are_refused(
    strategy: ParameterServerStrategy, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgumentError, match="jit_compile=True"):
        prepare(strategy, compiled("dense", OPTIMIZERS["SGD"], jit_compile=True))
    model = compiled("dense", OPTIMIZERS["SGD"])
    prepare(strategy, model)
    with pytest.raises(InvalidArgumentError, match="BackupAndRestore"):
        trained(model, "dense", callbacks=[keras.callbacks.BackupAndRestore(tmp_path)])


@pytest.mark.parametrize(
    "make",
    [
        lambda: stratagem.OneDeviceStrategy("CPU:0"),
        lambda: stratagem.MirroredStrategy(["CPU:0"]),
        lambda: stratagem.CentralStorageStrategy(["CPU:0"]),
    ],
)
def test_under_a_strategy_of_one_replica_keras_trains_alone(
    make: Callable[[], stratagem.Strategy],
) -> None:
    plain, ours = compiled("dense", OPTIMIZERS["Adam"]), compiled("dense", OPTIMIZERS["Adam"])
    prepare(make(), ours)
    assert trained(ours, "dense") == trained(plain, "dense")
    require_equal(plain, ours)
    with pytest.raises(FailedPreconditionError, match="prepared already"):
        prepare(make(), ours)


def test_several_replicas_without_servers_are_refused() -> None:
    stratagem.config.set_logical_cpus(2)
    try:
        mirrored = stratagem.MirroredStrategy(["CPU:0", "CPU:1"])
        with pytest.raises(InvalidTypeError, match="a MirroredStrategy with 2 replicas"):
            prepare(mirrored, compiled("dense", OPTIMIZERS["Adam"]))
    finally:
        stratagem.config.set_logical_cpus(1)


def test_a_model_is_compiled_before_and_prepared_once(strategy: ParameterServerStrategy) -> None:
    with pytest.raises(FailedPreconditionError, match="not compiled"):
        prepare(strategy, MODELS["dense"]())
    with pytest.raises(InvalidTypeError, match=r"keras\.Model"):
        prepare(strategy, keras.layers.Dense(1))
    model = compiled("dense", OPTIMIZERS["SGD"])
    prepare(strategy, model)
    with pytest.raises(FailedPreconditionError, match="prepared already"):
        prepare(strategy, model)


def test_an_optimizer_that_has_taken_steps_is_refused(strategy: ParameterServerStrategy) -> None:
    model = compiled("dense", OPTIMIZERS["Adam"])
    trained(model, "dense", epochs=1)
    with pytest.raises(FailedPreconditionError, match="has taken steps"):
        prepare(strategy, model)


def test_scopes_are_for_what_is_none_of_keras(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        model = compiled("dense", OPTIMIZERS["Adam"])
        with pytest.raises(ContextError, match="outside of it"):
            prepare(strategy, model)
    with pytest.raises(ContextError, match="made in the scope"):
        prepare(strategy, model)
    with pytest.raises(FailedPreconditionError, match="Keras"):
        trained(model, "dense")


def test_a_table_stays_one_whatever_the_model_is_compiled_with(
    strategy: ParameterServerStrategy,
) -> None:
    model = compiled("towers", OPTIMIZERS["Adagrad"])
    prepare(strategy, model)
    with pytest.raises(InvalidArgumentError, match="'rows/embeddings' is a table"):
        model.compile(OPTIMIZERS["Adam"](), loss="mse")
    with pytest.raises(ValueError, match="must call `compile"):
        trained(model, "towers")
