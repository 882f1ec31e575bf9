"""OneDeviceStrategy: one replica, nothing is wrapped."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import one_device, replica_id


@scenario("OD-1")
def its_device_is_spelled_in_several_ways(lib: Library) -> Any:
    shown = []
    for device in ("cpu:1", "/cpu:1", "/device:CPU:1"):
        extended = lib.distribute.OneDeviceStrategy(device).extended
        shown.append([extended.worker_devices, extended.parameter_devices])
    return shown


@scenario("OD-1", core=(40,))
def the_replica_runs_once(lib: Library) -> Any:
    strategy = one_device(lib)
    calls: list[int] = []

    def fn(x: Any) -> Any:
        calls.append(replica_id(lib))
        return {"double": 2 * x, "same": [x]}

    return [strategy.run(fn, (lib.tensor([1.0, 2.0]),)), calls]


@scenario("OD-1")
def a_variable_is_on_the_device(lib: Library) -> Any:
    strategy = lib.distribute.OneDeviceStrategy("CPU:2")
    with strategy.scope(), lib.device("CPU:1"):
        variable = lib.distribute.Variable(lib.tensor(1.0))
    strategy.run(lambda: variable.assign_add(1.0))
    return [lib.device_of(variable), variable]


@scenario("OD-1", "RED-24")
def values_are_reduced_as_they_are(lib: Library) -> Any:
    strategy, value = one_device(lib), lib.tensor([1.0, 2.0])
    return [
        strategy.reduce("SUM", value, axis=None),
        strategy.reduce("SUM", value, axis=0),
        strategy.reduce("MEAN", value, axis=0),
        strategy.experimental_local_results(value),
        strategy.gather(value, axis=0),
    ]


@scenario("OD-2")
def an_update_gets_the_variable(lib: Library) -> Any:
    strategy = one_device(lib)
    with strategy.scope():
        variable = lib.distribute.Variable(lib.tensor(1.0))

        def fn(var: Any, delta: float) -> Any:
            var.assign_add(delta)
            return var is variable

        same = strategy.extended.update(variable, fn, (2.0,))
        listed = strategy.extended.update(variable, fn, (2.0,), group=False)
    return [same, listed, variable]


@scenario("OD-3")
def datasets_give_plain_tensors(lib: Library) -> Any:
    strategy = one_device(lib)
    dataset = strategy.experimental_distribute_dataset(lib.range(5).batch(2))
    single = strategy.experimental_distribute_dataset(lib.range(2))
    return [list(dataset), list(single)]


@scenario("OD-4")
def other_state_is_on_the_device(lib: Library) -> Any:
    extended = lib.distribute.OneDeviceStrategy("CPU:1").extended
    return list(extended.non_slot_devices([]))


@scenario("OD-1")
def a_merge_call_is_made_at_once(lib: Library) -> Any:
    strategy = one_device(lib)

    def fn() -> Any:
        context = lib.distribute.get_replica_context()
        return context.merge_call(lambda merging, x: [merging is strategy, x], args=(3,))

    return strategy.run(fn)


@scenario("OD-1")
def a_device_has_to_be_named(lib: Library) -> Any:
    return [
        attempt(lib.distribute.OneDeviceStrategy, "no device"),
        attempt(lib.distribute.OneDeviceStrategy),
    ]


@scenario("OD-1", "DEV-1")
def the_device_may_be_in_small_letters(lib: Library) -> Any:
    strategy = lib.distribute.OneDeviceStrategy("/device:cpu:1")
    with strategy.scope():
        made = lib.distribute.Variable(lib.tensor(1.0))
    strategy.run(lambda: made.assign_add(1.0))
    return [lib.device_of(made), made, strategy.extended.worker_devices]
