"""The API of TensorFlow 1.12; TensorFlow 2 answers by what it calls the methods."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import cpus


def strategies(lib: Library) -> list[Any]:
    """Return a strategy with two towers, and one with one."""
    contrib = lib.contrib
    return [contrib.MirroredStrategy(cpus(2)), contrib.OneDeviceStrategy("CPU:0")]


def per_tower(lib: Library, strategy: Any) -> Any:
    """Return 3 for the first tower and 8 for the second."""
    return strategy.call_for_each_tower(
        lambda: lib.tensor(3.0 + 5 * lib.contrib.get_tower_context().tower_id)
    )


@scenario("TWR-1", "TWR-2", core=(16,))
def a_tower_in_scope(lib: Library) -> Any:
    contrib = lib.contrib

    def where() -> list[Any]:
        in_tower = contrib.get_tower_context() is not None
        return [
            in_tower,
            contrib.in_cross_tower_context(),
            contrib.has_distribution_strategy(),
        ]

    answers = [where()]
    for strategy in strategies(lib):
        with strategy.scope() as entered:
            calls = strategy.call_for_each_tower(lambda: tuple(where()))
            answers.append([entered is strategy, where(), list(calls), where()])
    return answers


@scenario("TWR-2", "TWR-14")
def results_are_a_list_of_all_towers(lib: Library) -> Any:
    def fn(value: Any, factor: int) -> Any:
        return {"value": value * factor, "same": "text"}

    answers = []
    for strategy in strategies(lib):
        with strategy.scope():
            value = per_tower(lib, strategy)
            result = strategy.call_for_each_tower(fn, value, factor=10)
            answers.append({key: strategy.unwrap(result[key]) for key in result})
    return answers


@scenario("TWR-3", core=(17,))
def a_merge_call_takes_its_arguments_one_by_one(lib: Library) -> Any:
    def merge_fn(distribution: Any, three_plus_tower_id: Any, scale: int) -> Any:
        return scale * sum(distribution.unwrap(three_plus_tower_id))

    def fn(three: Any) -> Any:
        tower = lib.contrib.get_tower_context()
        v = three + tower.tower_id
        return tower.merge_call(merge_fn, v, scale=10) + v

    answers = []
    for strategy in strategies(lib):
        with strategy.scope():
            merged = strategy.call_for_each_tower(fn, lib.tensor(3.0))
            answers.append(strategy.unwrap(merged))
    return answers


@scenario("TWR-3", says=("made a different number",))
def towers_make_equally_many_merge_calls(lib: Library) -> Any:
    strategy = strategies(lib)[0]

    def fn() -> None:
        tower = lib.contrib.get_tower_context()
        if tower.tower_id == 0:
            tower.merge_call(lambda distribution: None)

    with strategy.scope():
        strategy.call_for_each_tower(fn)


@scenario("TWR-10", "TWR-11")
def values_are_reduced_as_an_aggregation_says(lib: Library) -> Any:
    strategy = strategies(lib)[0]
    both = lib.contrib.VariableAggregation.SUM, lib.contrib.VariableAggregation.MEAN
    with strategy.scope():
        value, v = per_tower(lib, strategy), lib.distribute.Variable(1.0)
        return [
            [
                strategy.reduce(aggregation, value, "/device:CPU:0"),
                strategy.unwrap(strategy.reduce(aggregation, value, v)),
                strategy.batch_reduce(aggregation, [(value, value), (value, v)]),
            ]
            for aggregation in both
        ]


@scenario("TWR-10")
def plain_values_have_a_mean_but_no_sum(lib: Library) -> Any:
    says = ("A non-DistributedValues value",)
    total, mean = (
        lib.contrib.VariableAggregation.SUM,
        lib.contrib.VariableAggregation.MEAN,
    )
    answers = []
    for strategy in strategies(lib):
        with strategy.scope():
            reduce = strategy.reduce
            sums = attempt(reduce, total, lib.tensor(3.0), "/device:CPU:0", says=says)
            answers.append([sums, reduce(mean, lib.tensor(3.0), "/device:CPU:0")])
    return answers


@scenario("TWR-10")
def an_aggregation_may_name_no_reduction(lib: Library) -> Any:
    strategy = strategies(lib)[0]
    with strategy.scope():
        value = per_tower(lib, strategy)
        strategy.reduce(lib.contrib.VariableAggregation.NONE, value, "/device:CPU:0")


@scenario("TWR-12")
def a_tensor_is_copied_to_all_towers(lib: Library) -> Any:
    strategy = strategies(lib)[0]
    with strategy.scope():
        v = lib.distribute.Variable(1.0)
        return strategy.unwrap(strategy.broadcast(lib.tensor(4.0), v))


@scenario("TWR-13", "TWR-18")
def a_variable_is_updated_where_its_copies_are(lib: Library) -> Any:
    def fn(component: Any, amount: Any, factor: float) -> Any:
        component.assign_add(amount * factor)
        return component.read_value()

    answers = []
    for strategy in strategies(lib):
        with strategy.scope():
            v = lib.distribute.Variable(1.0)
            amount = lib.tensor(2.0)
            results = strategy.update(v, fn, amount, factor=3.0, grouped=False)
            strategy.update(v, fn, amount, factor=1.0)
            container = strategy.value_container(strategy.unwrap(v)[-1])
            answers.append([results, container is v, v.read_value()])
    return answers


@scenario("TWR-16")
def elements_go_to_one_device_after_the_other(lib: Library) -> Any:
    answers = []
    for strategy in strategies(lib):
        with strategy.scope():
            dataset = strategy.distribute_dataset(lambda: lib.range(5).batch(1))
            iterator = dataset.make_one_shot_iterator()
            rounds = 5 // strategy.num_towers
            seen = [strategy.unwrap(iterator.get_next()) for _ in range(rounds)]
            answers.append([seen, attempt(iterator.get_next)])
    return answers


@scenario("TWR-16", says=("must return a tf.data.Dataset",))
def a_dataset_function_returns_a_dataset(lib: Library) -> Any:
    strategy = strategies(lib)[0]
    with strategy.scope():
        strategy.distribute_dataset(lambda: 3)


@scenario("MSC-1")
def the_parts_of_a_pair_are_arguments(lib: Library) -> Any:
    seen: list[Any] = []

    def step(context: Any, features: Any, labels: Any) -> None:
        seen.append([features, labels])

    for strategy in strategies(lib):
        with strategy.scope():
            pairs = lib.dataset([(1.0, 2), (3.0, 4), (5.0, 6), (7.0, 8)])
            dataset = strategy.distribute_dataset(lambda pairs=pairs: pairs.batch(2))
            iterator = dataset.make_one_shot_iterator()
            strategy.run_steps_on_dataset(step, iterator, iterations=1)
    return seen
