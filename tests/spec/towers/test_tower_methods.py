"""What strategies of TensorFlow 1.12 did with values and variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import stratagem
from stratagem import ReduceOp, Variable, VariableAggregation, contrib
from tests.client.batches import batches, pairs, shares
from tests.client.two_replicas import TwoReplicas
from tests.deprecations import warns_to_use
from tests.spec.towers.towers import CPU, numbers, per_tower, tower

pytestmark = [
    pytest.mark.usefixtures("four_cpus"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def strategy() -> contrib.MirroredStrategy:
    return contrib.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def in_scope(strategy: contrib.MirroredStrategy) -> Iterator[None]:
    with strategy.scope():
        yield


SUM, MEAN = VariableAggregation.SUM, VariableAggregation.MEAN


@pytest.mark.spec("TWR-10")
def test_values_are_reduced_as_an_aggregation_says(
    strategy: contrib.MirroredStrategy, in_scope: None
) -> None:
    value = per_tower(3.0, 8.0)
    first = VariableAggregation.ONLY_FIRST_TOWER
    for aggregation, expected in {SUM: 11, MEAN: 5.5, first: 3}.items():
        assert strategy.reduce(aggregation, value, "CPU:0").item() == expected
    mirrored = strategy.reduce(SUM, value, ["/cpu:0", "/cpu:1"])
    assert isinstance(mirrored, stratagem.Mirrored)
    assert numbers(strategy.unwrap(mirrored)) == [11, 11]
    for unknown in (VariableAggregation.NONE, ReduceOp.SUM, "SUM"):
        with pytest.raises(ValueError, match="names no reduction"):
            strategy.reduce(unknown, value, "CPU:0")  # type: ignore[arg-type]


@pytest.mark.spec("TWR-10")
def test_plain_values_have_a_mean_but_no_sum(
    strategy: contrib.MirroredStrategy, in_scope: None
) -> None:
    first = VariableAggregation.ONLY_FIRST_REPLICA
    assert strategy.reduce(SUM, 0, "CPU:0") == 0
    assert strategy.reduce(MEAN, 3.0, "CPU:0") == 3
    assert strategy.reduce(first, 3.0, ["CPU:0", "CPU:1"]) == 3
    with pytest.raises(ValueError, match="A non-DistributedValues value"):
        strategy.reduce(SUM, 3.0, "CPU:0")


@pytest.mark.spec("TWR-11")
def test_several_values_are_reduced_at_once(
    strategy: contrib.MirroredStrategy, in_scope: None
) -> None:
    value, both = per_tower(1.0, 2.0), ["CPU:0", "CPU:1"]
    one, two = strategy.batch_reduce(SUM, [(value, "CPU:0"), (value, both)])
    assert one.item() == 3
    assert numbers(strategy.unwrap(two)) == [3, 3]


@pytest.mark.spec("TWR-12")
def test_a_tensor_is_copied_to_all_towers_or_some_devices(
    strategy: contrib.MirroredStrategy, in_scope: None
) -> None:
    everywhere = strategy.broadcast(torch.tensor(4.0))
    assert isinstance(everywhere, stratagem.Mirrored)
    assert numbers(everywhere.values) == [4, 4]
    three = strategy.broadcast(torch.tensor(4.0), ["CPU:0", "CPU:1", "CPU:2"])
    assert numbers(three.values) == [4, 4, 4]
    assert strategy.broadcast(torch.tensor(4.0), "CPU:1").item() == 4


@pytest.mark.spec("TWR-13")
def test_update_functions_get_mirrored_arguments_one_by_one(
    strategy: contrib.MirroredStrategy, in_scope: None
) -> None:
    v = Variable(1.0)

    def fn(component: Variable, amount: torch.Tensor, factor: int) -> torch.Tensor:
        component.assign_add(amount * factor)
        return component.read_value()

    amount = strategy.broadcast(torch.tensor(2.0))
    assert numbers(strategy.update(v, fn, amount, factor=3).values) == [7, 7]
    assert numbers(strategy.update(v, fn, amount, factor=3, grouped=False)) == [13, 13]
    assert strategy.update(v, lambda component: None, grouped=False) == [None]
    with pytest.raises(TypeError, match="Expected value to be mirrored"):
        strategy.update(v, fn, per_tower(1.0, 2.0), factor=1)


@pytest.mark.spec("TWR-13", "TWR-18")
def test_non_slot_updates_run_on_all_devices(
    strategy: contrib.MirroredStrategy, in_scope: None
) -> None:
    places = strategy.non_slot_devices([])
    assert places == [f"{CPU}0", f"{CPU}1"]
    with strategy.colocate_vars_with(places):
        v = Variable(1.0)
    update = strategy.update_non_slot
    results = update(places, lambda x: torch.tensor(float(x)), 3, grouped=False)
    assert numbers(results) == [3, 3]
    with pytest.raises(TypeError, match="Expected value to be mirrored"):
        update(places, lambda x: x, per_tower(1.0, 2.0))
    assert strategy.value_container(v.values[1]) is v
    assert strategy.read_var(v).item() == 1


@pytest.mark.spec("TWR-14")
def test_unwrapping_gives_a_list(strategy: contrib.MirroredStrategy) -> None:
    assert numbers(strategy.unwrap(per_tower(1.0, 2.0))) == [1, 2]
    assert strategy.unwrap(5) == [5]
    assert strategy.unwrap({"a": 1}) == [{"a": 1}]
    with strategy.scope():
        v = Variable(1.0)
    assert strategy.unwrap(v) == list(v.values)


@pytest.mark.spec("TWR-15")
def test_a_group_of_several_is_nothing(strategy: contrib.MirroredStrategy) -> None:
    assert strategy.group(per_tower(1.0, 2.0)) is None
    assert contrib.OneDeviceStrategy("CPU:0").group(5) == 5


@pytest.mark.spec("TWR-16")
def test_elements_of_a_dataset_go_to_one_device_after_the_other(
    strategy: contrib.MirroredStrategy, in_scope: None
) -> None:
    dataset = strategy.distribute_dataset(lambda: batches(11, 1))
    iterators = dataset.make_one_shot_iterator(), dataset.make_initializable_iterator()
    for iterator in iterators:
        rounds = []
        with pytest.raises(stratagem.OutOfRangeError):
            while True:
                rounds.append(shares(iterator.get_next()))
        assert rounds == [[[k], [k + 1]] for k in range(0, 10, 2)]


@pytest.mark.spec("TWR-16")
@pytest.mark.parametrize("returned", [3, None, "text"])
def test_a_dataset_function_returns_a_dataset(
    strategy: contrib.MirroredStrategy, returned: Any
) -> None:
    with pytest.raises(ValueError, match=r"must return a tf\.data\.Dataset"):
        strategy.distribute_dataset(lambda: returned)


@pytest.mark.spec("TWR-17")
def test_there_is_nothing_to_initialize(strategy: contrib.MirroredStrategy) -> None:
    with warns_to_use("nothing"):
        strategy.initialize()
    with warns_to_use("nothing"):
        strategy.finalize()


@pytest.mark.spec("TWR-18", "MS-10")
def test_a_strategy_tells_of_itself(strategy: contrib.MirroredStrategy) -> None:
    devices = [f"{CPU}0", f"{CPU}1"]
    assert strategy.worker_devices == strategy.parameter_devices == devices
    assert (strategy.num_towers, strategy.is_single_tower) == (2, False)
    assert not strategy.between_graph
    assert strategy.should_init
    assert strategy.should_checkpoint
    assert strategy.should_save_summary
    assert contrib.MirroredStrategy(["CPU:0"]).is_single_tower


@pytest.mark.spec("TWR-18")
def test_what_a_strategy_does_not_tell_is_not_implemented() -> None:
    strategy = contrib.DistributionStrategy(TwoReplicas())
    for member in ("between_graph", "should_init", "should_checkpoint"):
        with pytest.raises(NotImplementedError, match="must be implemented in desc"):
            getattr(strategy, member)


@pytest.mark.spec("TWR-20")
def test_a_strategy_needs_no_configuration() -> None:
    config = stratagem.ConfigProto(isolate_session_state=False)
    strategy = contrib.OneDeviceStrategy("CPU:0")
    with warns_to_use("update_config_proto"):
        strategy.configure(config, {"worker": ["a:1"]}, "worker", 0)
    assert config == stratagem.ConfigProto(isolate_session_state=False)


@pytest.mark.spec("TWR-21")
def test_a_variable_is_incremented_once_for_all_towers(
    strategy: contrib.MirroredStrategy, in_scope: None
) -> None:
    v = Variable(1, aggregation=VariableAggregation.ONLY_FIRST_TOWER)
    strategy.call_for_each_tower(lambda: contrib.increment_var(v, 5))
    contrib.increment_var(v)
    assert numbers(copy.value() for copy in v.values) == [7, 7]


@pytest.mark.spec("MSC-1")
def test_a_step_gets_the_parts_of_a_tuple_one_by_one(
    strategy: contrib.MirroredStrategy, in_scope: None
) -> None:
    seen = []

    def step(context: contrib.MultiStepContext, features: Any, labels: Any) -> None:
        seen.append((shares(features), shares(labels)))

    iterator = strategy.distribute_dataset(lambda: pairs(4, 1)).make_one_shot_iterator()
    context = strategy.run_steps_on_dataset(step, iterator, iterations=2)
    assert [labels for _, labels in seen] == [[[0], [1]], [[2], [3]]]
    assert isinstance(context, contrib.MultiStepContext)
    assert context.run_op is None


@pytest.mark.spec("MSC-6", "MSC-7")
def test_an_aggregation_says_how_outputs_are_reduced(
    strategy: contrib.MirroredStrategy, in_scope: None
) -> None:
    first = contrib.VariableAggregation.ONLY_FIRST_TOWER

    def fn(context: contrib.MultiStepContext, inputs: torch.Tensor) -> None:
        context.set_last_step_output("sum", inputs.sum(), SUM)
        context.set_last_step_output("first", inputs.sum(), first)
        context.set_non_tensor_output("ids", tower().tower_id)

    def step(context: contrib.MultiStepContext, inputs: Any) -> None:
        context.set_last_step_output("inputs", inputs)
        context.set_non_tensor_output("loop", "as it is")
        strategy.call_for_each_tower(fn, context, inputs)

    dataset = strategy.distribute_dataset(lambda: batches(4, 1))
    context = strategy.run_steps_on_dataset(step, dataset.make_one_shot_iterator(), 2)
    assert context.last_step_outputs["sum"].item() == 5
    assert context.last_step_outputs["first"].item() == 2
    assert shares(context.last_step_outputs["inputs"]) == [[2], [3]]
    assert context.non_tensor_outputs == {"ids": [0, 1], "loop": "as it is"}
