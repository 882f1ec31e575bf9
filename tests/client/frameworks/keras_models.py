"""Models of Keras, optimizers of Keras, and how far two trainings are apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stratagem import ParameterServerStrategy

EXAMPLES, BATCH = 24, 8


def dense() -> Any:
    import keras

    layers = keras.layers
    return keras.Sequential(
        [keras.Input([6]), layers.Dense(5, "tanh"), layers.Dropout(0.2), layers.Dense(1)]
    )


def built_by_fit() -> Any:
    import keras

    return keras.Sequential([keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])


def convolution() -> Any:
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input([6]),
            layers.Reshape([6, 1]),
            layers.Conv1D(4, 3),
            layers.BatchNormalization(momentum=0.5),
            layers.Activation("relu"),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


def sequence() -> Any:
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input([6], dtype="int32"),
            layers.Embedding(9, 4),
            layers.LSTM(5),
            layers.LayerNormalization(),
            layers.Dense(1),
        ]
    )


def towers() -> Any:
    """Two tables, one of which is looked up twice."""
    import keras

    layers = keras.layers
    ids = keras.Input([6], dtype="int32")
    rows, others = layers.Embedding(9, 4, name="rows"), layers.Embedding(9, 4, name="others")
    products = layers.Multiply()([rows(ids), rows(layers.Maximum()([ids, ids // 2 + 1]))])
    return keras.Model(ids, layers.Dense(1)(layers.Flatten()(products + others(ids))))


MODELS: Mapping[str, Callable[[], Any]] = {
    "dense": dense,
    "built by fit": built_by_fit,
    "convolution": convolution,
    "sequence": sequence,
    "towers": towers,
}


def examples(name: str = "dense") -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    targets = random.normal(size=(EXAMPLES, 1)).astype("float32")
    if name in ("sequence", "towers"):
        # Some rows come often, and one never.
        return random.integers(0, 8, size=(EXAMPLES, 6)) // 2 * 2, targets
    return random.normal(size=(EXAMPLES, 6)).astype("float32"), targets


def compiled(name: str, optimizer: Callable[[], Any], **settings: Any) -> Any:
    """A model, the same each time."""
    import keras

    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    model = MODELS[name]()
    model.compile(optimizer(), loss="mse", **settings)
    return model


def trained(model: Any, name: str, epochs: int = 2, **settings: Any) -> Any:
    """The errors of the epochs."""
    import keras

    keras.utils.set_random_seed(4)
    settings = {"batch_size": BATCH, "epochs": epochs, "verbose": 0, **settings}
    return model.fit(*examples(name), **settings).history


def trained_both(
    strategy: ParameterServerStrategy,
    name: str,
    optimizer: Callable[[], Any],
    lazy: bool = False,
    **settings: Any,
) -> tuple[Any, Any]:
    """A model that Keras has trained alone, and one on servers, with the same errors."""
    from stratagem.frameworks.keras import prepare

    plain, ours = compiled(name, optimizer), compiled(name, optimizer)
    prepare(strategy, ours, lazy=lazy)
    wanted, found = (trained(model, name, **settings) for model in (plain, ours))
    for key, values in wanted.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-4, err_msg=key)
    return plain, ours


def require_equal(plain: Any, ours: Any) -> None:
    """Check that weights, statistics and counters are equal within rounding."""
    wanted, found = plain.get_weights(), ours.get_weights()
    assert len(wanted) == len(found) > 0
    for variable, one, other in zip(plain.weights, wanted, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=2e-6, err_msg=variable.path)
    assert int(plain.optimizer._iterations.value) == int(ours.optimizer._iterations.value)
