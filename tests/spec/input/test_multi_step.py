"""Loops of several steps behind one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stratagem
from stratagem import ReduceOp, Strategy
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


@pytest.mark.spec("MSC-3")
def test_a_loop_returns_its_context() -> None:
    context = loop(mirrored(), lambda context, inputs: None)
    assert isinstance(context, stratagem.MultiStepContext)
    assert context.run_op is None
    assert context.last_step_outputs == context.non_tensor_outputs == {}


@both
@pytest.mark.spec("MSC-4")
def test_outputs_set_between_replicas_are_kept_or_reduced(build: Any) -> None:
    strategy = build()
    kept = []

    def step(context: stratagem.MultiStepContext, inputs: Any) -> None:
        kept.append(inputs)
        context.set_last_step_output("kept", inputs)
        context.set_last_step_output("sum", inputs, "sum")

    outputs = loop(strategy, step).last_step_outputs
    assert outputs["kept"] is kept[0]
    assert outputs["sum"].tolist() == ([1] if build is mirrored else [0, 1])


@both
@pytest.mark.spec("MSC-5", "MSC-8")
def test_outputs_set_by_replicas_are_reduced(build: Any) -> None:
    strategy = build()

    def replica(context: stratagem.MultiStepContext, inputs: torch.Tensor) -> None:
        context.set_last_step_output("sum", inputs.sum(), ReduceOp.SUM)

    def step(context: stratagem.MultiStepContext, inputs: Any) -> None:
        strategy.run(replica, (context, inputs))

    outputs = loop(strategy, step, steps=2).last_step_outputs
    assert {name: value.item() for name, value in outputs.items()} == {"sum": 2 + 3}


@pytest.mark.spec("MSC-5")
def test_replicas_say_how_their_outputs_are_reduced() -> None:
    strategy = mirrored()

    def step(context: stratagem.MultiStepContext, inputs: Any) -> None:
        strategy.run(context.set_last_step_output, ("out", inputs))

    with pytest.raises(ValueError, match="reduce_op must say how"):
        loop(strategy, step)


@pytest.mark.spec("MSC-7")
def test_other_outputs_of_replicas_become_a_tuple() -> None:
    strategy = mirrored()

    def replica(context: stratagem.MultiStepContext, inputs: torch.Tensor) -> None:
        context.set_non_tensor_output("shares", f"share of {inputs.item()}")

    def step(context: stratagem.MultiStepContext, inputs: Any) -> None:
        context.set_non_tensor_output("loop", ["as it is"])
        strategy.run(replica, (context, inputs))

    assert loop(strategy, step).non_tensor_outputs == {
        "loop": ["as it is"],
        "shares": ("share of 0", "share of 1"),
    }


@both
@pytest.mark.spec("MSC-8")
def test_the_outputs_are_those_of_the_last_step(build: Any) -> None:
    def step(context: stratagem.MultiStepContext, inputs: Any) -> None:
        context.set_last_step_output("inputs", inputs)

    outputs = loop(build(), step, steps=3).last_step_outputs
    assert shares(outputs["inputs"]) == ([[4], [5]] if build is mirrored else [[4, 5]])


@pytest.mark.spec("MSC-10")
def test_initial_values_are_needless_but_have_to_fit() -> None:
    strategy = mirrored()

    def step(context: stratagem.MultiStepContext, inputs: Any) -> None:
        context.set_last_step_output("inputs", inputs)
        context.set_last_step_output("sum", inputs, ReduceOp.SUM)

    fitting = {"inputs": [0, 0], "sum": 0}
    assert loop(strategy, step, initial=fitting).last_step_outputs.keys() == {
        "inputs",
        "sum",
    }
    assert loop(strategy, step, initial=None).last_step_outputs
    with pytest.raises(ValueError, match="have the same nested structure"):
        loop(strategy, step, initial={"sum": 0})


@pytest.mark.spec("MSC-11")
def test_no_step_has_no_output() -> None:
    def step(context: stratagem.MultiStepContext, inputs: Any) -> None:
        context.set_last_step_output("inputs", inputs)

    assert loop(mirrored(), step, steps=0).last_step_outputs == {}


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
