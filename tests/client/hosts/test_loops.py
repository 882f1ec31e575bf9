"""Loops of many steps, which hosts run by themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stratagem
from stratagem import InputContext, MultiStepContext, OutOfRangeError, TPUStrategy
from tests.client.hosts.training import (
    Trained,
    global_batches,
    parameters_of_cores,
    plainly_trained,
)


def loop(strategy: TPUStrategy, step: Any, iterator: Any, iterations: int = 1) -> MultiStepContext:
    return strategy.extended.experimental_run_steps_on_iterator(step, iterator, iterations)


def dealt(strategy: TPUStrategy, steps: int = 4) -> Any:
    """Return an iterator that gives core c of step s the tensor [4 * s + c]."""

    def own(context: InputContext) -> list[torch.Tensor]:
        first = 2 * context.input_pipeline_id
        cores = [(step, core) for step in range(steps) for core in (first, first + 1)]
        return [torch.tensor([4.0 * step + core]) for step, core in cores]

    return iter(strategy.distribute_datasets_from_function(own))


def values(output: Any) -> list[Any]:
    return [each.tolist() for each in output.values]


def test_a_loop_is_one_call_and_leaves_all_cores_equal(strategy: TPUStrategy) -> None:
    batches = global_batches(30)
    trained = Trained(strategy)
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    context = loop(strategy, trained.step, iterator, 20)
    assert strategy.extended.calls_per_host == 1
    first, *others = parameters_of_cores(strategy, trained.model)
    assert len(others) == 3
    assert all(torch.equal(first, other) for other in others)
    here = torch.cat([each.detach().flatten() for each in trained.model.parameters()])
    assert torch.equal(here, first)
    assert context.last_step_outputs["loss"] < 10


def test_training_equals_a_plain_loop_over_the_same_batches(
    strategy: TPUStrategy,
) -> None:
    batches = global_batches(25)
    trained = Trained(strategy)
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    for steps in (10, 15):
        loop(strategy, trained.step, iterator, steps)
    plain, optimizer = plainly_trained(batches)
    for ours, theirs in zip(trained.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        trained.optimizer.state_dict()["state"], optimizer.state_dict()["state"]
    )


def test_each_host_reads_its_own_share(strategy: TPUStrategy) -> None:
    def step(context: MultiStepContext, inputs: Any) -> None:
        context.set_last_step_output("kept", inputs)
        context.set_last_step_output("sum", inputs, "sum")

    iterator = dealt(strategy)
    outputs = loop(strategy, step, iterator).last_step_outputs
    assert values(outputs["kept"]) == [[0], [1], [2], [3]]
    assert outputs["sum"].tolist() == [6]
    outputs = loop(strategy, step, iterator, 2).last_step_outputs
    assert values(outputs["kept"]) == [[8], [9], [10], [11]]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_iterator_can_be_started_again(strategy: TPUStrategy) -> None:
    def step(context: MultiStepContext, inputs: Any) -> None:
        context.set_last_step_output("sum", inputs, "sum")

    iterator = strategy.make_dataset_iterator([torch.arange(4.0)] * 3)
    for _ in range(2):
        assert loop(strategy, step, iterator, 3).last_step_outputs["sum"].item() == 6
        with pytest.raises(OutOfRangeError, match="End of sequence"):
            loop(strategy, step, iterator)
        assert iterator.initialize() == []


def test_the_end_of_the_data_loses_no_step(strategy: TPUStrategy) -> None:
    with strategy.scope():
        total = stratagem.Variable(
            0.0, aggregation=stratagem.VariableAggregation.SUM, trainable=False
        )

    def step(context: MultiStepContext, inputs: Any) -> None:
        strategy.run(lambda x: total.assign_add(x.sum()), (inputs,))

    with pytest.raises(OutOfRangeError, match="End of sequence"):
        loop(strategy, step, dealt(strategy, steps=3), 5)
    assert total.read_value().item() == sum(range(12))


def test_outputs_of_any_kind_come_from_all_cores(strategy: TPUStrategy) -> None:
    def replica(context: MultiStepContext, inputs: torch.Tensor) -> None:
        context.set_non_tensor_output("cores", f"core {int(inputs)}")
        context.set_last_step_output("max", inputs, stratagem.ReduceOp.SUM)

    def step(context: MultiStepContext, inputs: Any) -> None:
        context.set_non_tensor_output("loop", ["as it is"])
        context.set_last_step_output("number", 7)
        strategy.run(replica, (context, inputs))

    context = loop(strategy, step, dealt(strategy))
    assert context.non_tensor_outputs == {
        "loop": ["as it is"],
        "cores": ("core 0", "core 1", "core 2", "core 3"),
    }
    outputs = context.last_step_outputs
    assert (outputs["number"], outputs["max"].item()) == (7, 6)


def test_a_short_batch_is_refused_on_all_hosts(strategy: TPUStrategy) -> None:
    batches = [torch.zeros(8), torch.zeros(6)]
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    with pytest.raises(ValueError, match=r"fully defined shapes.*drop_last"):
        loop(strategy, lambda context, inputs: None, iterator, 2)


def test_hosts_read_the_data_and_not_the_program(strategy: TPUStrategy) -> None:
    iterator = iter(strategy.experimental_distribute_dataset([torch.zeros(4)]))
    assert iter(iterator) is iterator
    for read in (lambda: next(iterator), iterator.get_next):
        with pytest.raises(ValueError, match="read their data themselves"):
            read()
    with pytest.raises(TypeError, match="a dataset that they read themselves"):
        loop(strategy, lambda context, inputs: None, iter([torch.zeros(4)]))
