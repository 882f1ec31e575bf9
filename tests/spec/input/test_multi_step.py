"""Loops of several steps behind one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import stratagem
from stratagem import Strategy
from tests.client.batches import batches, pairs, shares

pytestmark = [
    pytest.mark.usefixtures("four_cpus"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

Step = Callable[[stratagem.MultiStepContext, Any], Any]


def mirrored() -> Strategy:
    return stratagem.MirroredStrategy(["CPU:0", "CPU:1"])


def one_device() -> Strategy:
    return stratagem.OneDeviceStrategy("CPU:0")


both = pytest.mark.parametrize("build", [mirrored, one_device])


def loop(
    strategy: Strategy, step: Step, *, steps: int = 1, initial: Any = None
) -> stratagem.MultiStepContext:
    """Run steps over [0, 1], [2, 3], [4, 5], [6, 7]."""
    iterator = strategy.make_dataset_iterator(batches(8, 2))
    return strategy.extended.experimental_run_steps_on_iterator(step, iterator, steps, initial)


@both
@pytest.mark.spec("MSC-2", "EXT-19")
def test_each_step_gets_the_context_and_one_input(build: Any) -> None:
    strategy = build()
    seen: list[Any] = []

    def step(context: stratagem.MultiStepContext, *inputs: Any) -> None:
        seen.append((context, inputs, stratagem.in_cross_replica_context()))

    iterator = strategy.make_dataset_iterator(pairs(4, 2))
    run = strategy.extended.experimental_run_steps_on_iterator
    context = run(step, iterator, iterations=2)
    (first, inputs, crosses), (second, _, _) = seen
    assert first is second is context
    assert crosses
    assert len(inputs) == 1
    assert isinstance(inputs[0], list)
    assert shares(inputs[0][1]) == ([[0], [1]] if build is mirrored else [[0, 1]])


@pytest.mark.spec("MSC-12")
def test_data_may_end_inside_of_a_loop() -> None:
    seen: list[Any] = []
    with pytest.raises(stratagem.OutOfRangeError, match="End of sequence"):
        loop(mirrored(), lambda context, inputs: seen.append(inputs), steps=9)
    assert len(seen) == 4


@pytest.mark.spec("MSC-13")
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(
            lambda: stratagem.CentralStorageStrategy(["CPU:0", "CPU:1"]),
            marks=pytest.mark.spec("CS-6"),
        ),
        stratagem.ParameterServerStrategy,
        stratagem.get_strategy,
    ],
)
def test_some_strategies_have_no_loops(
    build: Callable[[], Strategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(NotImplementedError, match="must be implemented in descendants"):
        loop(build(), lambda context, inputs: None)
