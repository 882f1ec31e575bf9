"""The default strategy."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario


@scenario("DEF-1")
def it_is_in_charge_outside_of_scopes(lib: Library) -> Any:
    default = lib.distribute.get_strategy()
    again = lib.distribute.get_strategy()
    return [default is again, default.num_replicas_in_sync]


@scenario("DEF-2")
def run_calls_the_function_once(lib: Library) -> Any:
    calls: list[int] = []

    def fn(a: int, b: int) -> list[int]:
        calls.append(a + b)
        return calls

    default = lib.distribute.get_strategy()
    return [default.run(fn, (1,), {"b": 2}) is calls, calls]


@scenario("DEF-3", "DEF-8", "DEF-11")
def values_come_back_as_they_are(lib: Library) -> Any:
    default = lib.distribute.get_strategy()
    value = {"a": 3, "b": lib.tensor([1.0, 2.0])}
    return [
        default.reduce("SUM", value, axis=None) is value,
        default.reduce("MEAN", value, axis=None) is value,
        default.extended.reduce_to("SUM", value, "/device:CPU:0") is value,
        default.gather(value, axis=0) is value,
        default.experimental_local_results(value)[0] is value,
        len(default.experimental_local_results([1, 2])),
    ]


@scenario("DEF-4", core=(12,))
def a_dataset_stays_as_it_is(lib: Library) -> Any:
    default, dataset = lib.distribute.get_strategy(), lib.range(10).batch(2)
    distributed = default.experimental_distribute_dataset(dataset)
    return [distributed is dataset, next(iter(distributed))]


@scenario("DEF-5")
def a_dataset_function_is_called(lib: Library) -> Any:
    dataset, told = lib.range(10).batch(2), []

    def dataset_fn(context: Any) -> Any:
        told.append(str(context))
        return dataset

    default = lib.distribute.get_strategy()
    return [default.distribute_datasets_from_function(dataset_fn) is dataset, told]


@scenario("DEF-6")
def a_value_function_is_called(lib: Library) -> Any:
    default = lib.distribute.get_strategy()
    return default.experimental_distribute_values_from_function(
        lambda c: [c.replica_id_in_sync_group, c.num_replicas_in_sync]
    )


@scenario("DEF-7")
def iterators_of_the_first_version_are_plain(lib: Library) -> Any:
    default = lib.v1.get_strategy()
    iterator = default.make_dataset_iterator(lib.range(4).batch(2))
    return [
        iterator.get_next(),
        iterator.get_next_as_optional().get_value(),
        bool(iterator.get_next_as_optional().has_value()),
    ]


@scenario("DEF-9")
def update_calls_the_function_with_the_variable(lib: Library) -> Any:
    update = lib.distribute.get_strategy().extended.update
    variable = lib.distribute.Variable(1.0)
    answers = [
        update(variable, lambda v, x: [v is variable, x], (5,)),
        update(variable, lambda v: {"a": 1}, group=False),
    ]
    update(variable, lambda v, by: v.assign_add(by), kwargs={"by": 2.0})
    return [answers, variable]


@scenario("DEF-10")
def there_are_no_devices_to_speak_of(lib: Library) -> Any:
    extended = lib.distribute.get_strategy().extended
    return [
        attempt(lambda: extended.worker_devices, says=("unsupported",)),
        attempt(lambda: extended.parameter_devices, says=("unsupported",)),
    ]
