"""CentralStorageStrategy: variables on one device, replicas on several."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, cpus, per_replica, replica_id


def devices(strategy: Any) -> Any:
    """Return the devices of replicas and of variables."""
    return [strategy.extended.worker_devices, strategy.extended.parameter_devices]


@scenario("CS-1", "CS-2", "CS-3")
def no_devices_are_the_first_cpu(lib: Library) -> Any:
    return devices(lib.distribute.CentralStorageStrategy())


@scenario("CS-2")
def the_only_compute_device_has_the_variables(lib: Library) -> Any:
    one = lib.distribute.CentralStorageStrategy(["cpu:1"])
    several = lib.distribute.CentralStorageStrategy(["cpu:1", "cpu:2"])
    return [devices(one), devices(several)]


@scenario("CS-3")
def the_parameter_device_is_shown_as_given(lib: Library) -> Any:
    return [
        devices(lib.distribute.CentralStorageStrategy(["/cpu:1", "CPU:2"], given))
        for given in ("cpu:0", "/cpu:0", "/device:CPU:0")
    ]


@scenario("CS-3", says=("No duplicates allowed",))
def a_compute_device_may_be_named_twice(lib: Library) -> Any:
    return devices(lib.distribute.CentralStorageStrategy(["CPU:0", "CPU:0"], "CPU:0"))


@scenario("CS-4")
def its_flags(lib: Library) -> Any:
    strategy = lib.v1.CentralStorageStrategy(cpus(2), "CPU:0")
    extended = strategy.extended
    return [
        extended.experimental_between_graph,
        extended.experimental_should_init,
        extended.should_checkpoint,
        extended.should_save_summary,
        central(lib).cluster_resolver,
    ]


@scenario("CS-5")
def replicas_compute_beside_one_variable(lib: Library) -> Any:
    strategy = lib.distribute.CentralStorageStrategy(["CPU:1", "CPU:2"], "CPU:3")
    with strategy.scope():
        variable = lib.distribute.Variable(
            lib.tensor(10.0), aggregation=lib.distribute.VariableAggregation.SUM
        )

        def fn() -> Any:
            variable.assign_add(replica_id(lib) + 1.0)
            return lib.tensor(float(replica_id(lib)))

        result = strategy.run(fn)
    return [
        lib.device_of(variable),
        lib.total(variable.read_value()),
        strategy.reduce("MEAN", result, axis=None),
        strategy.num_replicas_in_sync,
    ]


@scenario("STR-24")
def values_are_gathered(lib: Library) -> Any:
    strategy = central(lib)
    value = per_replica(lib, strategy, [lib.tensor([1.0, 2.0]), lib.tensor([3.0])])
    return [
        strategy.gather(value, axis=0),
        strategy.experimental_local_results(value),
        attempt(lambda: strategy.reduce("SUM", lib.tensor(1.0), axis=None)),
    ]


@scenario("CS-7")
def the_first_example_of_the_reference(lib: Library) -> Any:
    strategy = lib.distribute.CentralStorageStrategy(["CPU:0"])
    dataset = strategy.experimental_distribute_dataset(lib.range(5).batch(2))
    with strategy.scope():
        return [strategy.run(lambda x: x + 1, (x,)) for x in dataset]


@scenario("CS-8")
def an_example_of_the_reference_is_not_batched(lib: Library) -> Any:
    strategy = central(lib)

    def first() -> Any:
        return next(iter(strategy.experimental_distribute_dataset(lib.range(10))))

    return attempt(first)


@scenario("CS-8")
def the_numbers_of_that_example(lib: Library) -> Any:
    strategy = central(lib)
    (halves,) = strategy.experimental_distribute_dataset(lib.range(8).batch(8))
    result = strategy.run(lambda x: x, (halves,))
    return [strategy.reduce("SUM", result, axis=axis) for axis in (None, 0)]
