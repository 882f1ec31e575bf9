"""The strategy of TensorFlow 1.12 for accelerators: values, variables and loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from stratagem import (
    DistributedValues,
    PerReplica,
    Variable,
    VariableAggregation,
    contrib,
)
from tests.client.batches import pairs, shares
from tests.spec.towers.tpu_cores import FIRST, HOST, MEAN, SUM, numbers, on_cores

pytestmark = [
    pytest.mark.usefixtures("four_cpus"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def strategy() -> contrib.TPUStrategy:
    return on_cores()


@pytest.fixture
def in_scope(strategy: contrib.TPUStrategy) -> Iterator[None]:
    with strategy.scope():
        yield


def tower_id() -> torch.Tensor:
    tower = contrib.get_tower_context()
    assert tower is not None
    return torch.tensor(float(tower.tower_id))


def loop(strategy: contrib.TPUStrategy, step: Any, steps: int = 1) -> Any:
    """Run steps over the tensors [0.], [1.], ..., one for each core."""
    dataset = strategy.distribute_dataset(lambda: torch.arange(8.0).reshape(8, 1).unbind())
    iterator = dataset.make_one_shot_iterator()
    return strategy.run_steps_on_dataset(step, iterator, steps)


@pytest.mark.spec("TPU-7")
def test_a_function_runs_once_for_each_core(strategy: contrib.TPUStrategy, in_scope: None) -> None:
    run = strategy.call_for_each_tower
    found = run(lambda x: x + tower_id(), 3, run_concurrently=True)
    assert numbers(strategy.unwrap(found)) == [3, 4]
    assert run(lambda x: x, "as it is") == "as it is"


@pytest.mark.spec("TPU-8")
def test_a_dataset_is_distributed_only_to_iterators(
    strategy: contrib.TPUStrategy, in_scope: None
) -> None:
    dataset = strategy.distribute_dataset(lambda: [1, 2, 3, 4, 5])
    assert numbers(dataset) == [1, 2, 3, 4, 5]
    iterator = dataset.make_one_shot_iterator()
    assert [shares(each) for each in iterator] == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match=r"must return a tf\.data\.Dataset"):
        strategy.distribute_dataset(lambda: 3)


@pytest.mark.spec("TPU-9")
def test_all_inputs_of_a_loop_have_the_same_shapes(
    strategy: contrib.TPUStrategy, in_scope: None
) -> None:
    seen: list[Any] = []

    def step(context: contrib.MultiStepContext, features: Any, labels: Any) -> None:
        seen.append(shares(labels))

    def run(size: int, steps: int) -> None:
        iterator = strategy.distribute_dataset(lambda: pairs(10, size)).make_one_shot_iterator()
        strategy.run_steps_on_dataset(step, iterator, steps)

    run(size=2, steps=2)
    assert seen == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    with pytest.raises(ValueError, match=r"fully defined shapes.*drop_last"):
        run(size=3, steps=2)


@pytest.mark.spec("TPU-11")
def test_cores_reduce_by_every_aggregation(strategy: contrib.TPUStrategy, in_scope: None) -> None:
    def reduced(aggregation: VariableAggregation) -> Any:
        def merge(strategy: contrib.DistributionStrategy, value: Any) -> Any:
            return strategy.reduce(aggregation, value, value)

        def fn() -> Any:
            tower = contrib.get_tower_context()
            assert tower is not None
            return tower.merge_call(merge, tower_id() + 1)

        return strategy.unwrap(strategy.call_for_each_tower(fn))

    assert numbers(reduced(SUM)) == [3, 3]
    assert numbers(reduced(MEAN)) == [1.5, 1.5]
    assert numbers(reduced(FIRST)) == [1, 1]


@pytest.mark.spec("TPU-11", "MSC-6")
def test_a_step_of_a_loop_reduces_as_cores_do(
    strategy: contrib.TPUStrategy, in_scope: None
) -> None:
    def step(context: contrib.MultiStepContext, inputs: Any) -> None:
        total = strategy.reduce(SUM, inputs, "CPU:0")
        context.set_last_step_output("total", total, MEAN)
        context.set_last_step_output("mean", inputs, MEAN)
        assert strategy.reduce(FIRST, inputs, "CPU:0").tolist() == [0]

    outputs = loop(strategy, step).last_step_outputs
    assert {name: value.tolist() for name, value in outputs.items()} == {
        "total": [1],
        "mean": [0.5],
    }


@pytest.mark.spec("TPU-12")
def test_lists_are_reduced_to_the_destinations(
    strategy: contrib.TPUStrategy, in_scope: None
) -> None:
    value = [torch.tensor(3.0), torch.tensor(8.0)]
    reduced = {op: strategy.reduce(op, value, HOST).item() for op in (SUM, MEAN, FIRST)}
    assert reduced == {SUM: 11, MEAN: 5.5, FIRST: 3}
    assert strategy.reduce(SUM, PerReplica(value), [HOST]).item() == 11
    for places in ([HOST, "CPU:1"], PerReplica(value)):
        copies = strategy.unwrap(strategy.reduce(SUM, value, places))
        assert {copy.item() for copy in copies} == {11}
    assert strategy.reduce(SUM, value, "CPU:1").item() == 11
    assert strategy.reduce(SUM, value, Variable(0.0)).item() == 11
    with pytest.raises(ValueError, match="no list of what each core has"):
        strategy.reduce(SUM, 3.0, HOST)


@pytest.mark.spec("TPU-13")
def test_a_tensor_is_not_copied_to_cores(strategy: contrib.TPUStrategy, in_scope: None) -> None:
    tensor = torch.ones(2)
    assert strategy.broadcast(tensor) is tensor


@pytest.mark.spec("TPU-14")
def test_update_functions_change_the_copy_of_each_core(
    strategy: contrib.TPUStrategy, in_scope: None
) -> None:
    v = Variable(1.0)

    def add(copy: Variable, amount: float) -> torch.Tensor:
        copy.assign_add(amount)
        return copy.read_value()

    assert strategy.update(v, add, 2.0, grouped=False) == [3, 3]
    assert numbers(strategy.update(v, add, 2.0).values) == [5, 5]
    assert [copy.read_value().item() for copy in v.values] == [5, 5]
    with pytest.raises(ValueError, match="created in this strategy's scope"):
        strategy.update(torch.ones(1), add, 2.0)


@pytest.mark.spec("TPU-15")
def test_what_belongs_to_no_variable_is_updated_once(
    strategy: contrib.TPUStrategy, in_scope: None
) -> None:
    calls: list[int] = []

    def fn(x: int) -> torch.Tensor:
        calls.append(x)
        return torch.tensor(x)

    places = strategy.non_slot_devices([])
    assert strategy.update_non_slot(places, fn, 7).tolist() == 7
    assert strategy.update_non_slot(places, fn, 8, grouped=False) == [8]
    assert calls == [7, 8]


@pytest.mark.spec("TPU-17")
def test_variables_are_read(strategy: contrib.TPUStrategy, in_scope: None) -> None:
    assert strategy.read_var(Variable(2.0)).item() == 2
    with pytest.raises(ValueError, match="a copy on each device"):
        strategy.read_var(torch.ones(1))  # type: ignore[arg-type]


@pytest.mark.spec("TPU-18")
def test_values_come_by_the_names_of_their_devices(
    strategy: contrib.TPUStrategy,
) -> None:
    value = [1, 2]
    assert strategy.unwrap(value) is value
    assert strategy.unwrap(3) == [3]
    assert strategy.unwrap(PerReplica([4, 5])) == [4, 5]
    assert strategy.unwrap(DistributedValues({"CPU:1": 6, "CPU:0": 7})) == [7, 6]


@pytest.mark.spec("TPU-19")
def test_a_component_is_its_own_container(strategy: contrib.TPUStrategy, in_scope: None) -> None:
    copy = Variable(1.0).values[1]
    assert strategy.value_container(copy) is copy
    assert strategy.unwrap(strategy.value_container(copy)) == [copy]


@pytest.mark.spec("TPU-20")
def test_elements_are_mapped_on_the_host(strategy: contrib.TPUStrategy, in_scope: None) -> None:
    output = strategy.map(range(4), lambda x, y: torch.tensor(x * y), 2)
    assert isinstance(output, contrib.MapOutput)
    assert numbers(output.get()) == [0, 2, 4, 6]
    assert strategy.reduce(SUM, output, HOST).item() == 12


@pytest.mark.spec("MSC-8")
def test_what_is_not_reduced_is_the_list_of_all_cores() -> None:
    for cores, expected in (1, [[[2]], [[0]]]), (2, [[[4], [5]], [[0], [1]]]):
        strategy = on_cores(cores)

        def step(context: contrib.MultiStepContext, inputs: Any) -> None:
            context.set_last_step_output("inputs", inputs)
            context.set_last_step_output("nest", {"of": inputs})
            ids = strategy.call_for_each_tower(tower_id)  # noqa: B023
            context.set_last_step_output("ids", ids)

        with strategy.scope():
            outputs = loop(strategy, step, steps=3).last_step_outputs
        assert numbers(outputs["inputs"]) == expected[0]
        assert [each["of"].tolist() for each in outputs["nest"]] == expected[0]
        assert [[x.item()] for x in outputs["ids"]] == expected[1]
