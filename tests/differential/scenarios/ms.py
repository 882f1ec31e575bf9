"""MirroredStrategy: its devices, and what it says of itself."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import mirrored, replica_id

REMOTE = "/job:worker/task:{}/device:CPU:0"


@scenario("MS-1")
def no_devices_are_all_logical_cpus(lib: Library) -> Any:
    nothing: list[Any] = [None, []]
    strategies = [lib.distribute.MirroredStrategy(given) for given in nothing]
    return [list(each.extended.worker_devices) for each in strategies]


@scenario("MS-2")
def a_device_may_not_be_named_twice(lib: Library) -> Any:
    twice = [["CPU:0", "CPU:0"], ["CPU:0", "/device:CPU:0"], ["cpu:1", "/cpu:1"]]
    says = ("No duplicates allowed",)
    return [attempt(lib.distribute.MirroredStrategy, each, says=says) for each in twice]


@scenario("MS-3")
def devices_are_all_local_or_all_remote(lib: Library) -> Any:
    return [
        attempt(lib.distribute.MirroredStrategy, devices)
        for devices in (["CPU:0", REMOTE.format(0)], ["/job:worker/device:CPU:0"])
    ]


@scenario("MS-4", says=("In-graph multi-worker training", "not supported in eager"))
def other_processes_have_no_replicas(lib: Library) -> Any:
    return lib.distribute.MirroredStrategy([REMOTE.format(0), REMOTE.format(1)])


@scenario("MS-5", "MS-6")
def devices_are_shown_in_full_in_the_order_given(lib: Library) -> Any:
    shown = []
    for form in ("cpu:{}", "CPU:{}", "/cpu:{}", "/device:CPU:{}"):
        devices = [form.format(index) for index in (2, 0, 1)]
        extended = lib.distribute.MirroredStrategy(devices).extended
        shown.append([extended.worker_devices, extended.parameter_devices])
    return shown


@scenario("VAR-3")
def a_variable_is_on_all_devices(lib: Library) -> Any:
    strategy = lib.distribute.MirroredStrategy(["CPU:1", "CPU:3"])
    with strategy.scope():
        variable = lib.distribute.Variable(lib.tensor([1.0]))
    return [lib.device_of(copy) for copy in variable.values]


@scenario("MS-12")
def there_is_no_resolver(lib: Library) -> Any:
    return mirrored(lib).cluster_resolver


@scenario("MS-13")
def its_flags(lib: Library) -> Any:
    extended = lib.v1.MirroredStrategy(["CPU:0", "CPU:1"]).extended
    return [
        extended.experimental_between_graph,
        extended.experimental_should_init,
        extended.should_checkpoint,
        extended.should_save_summary,
    ]


@scenario("MS-14")
def a_session_isolates_its_state(lib: Library) -> Any:
    config = lib.v1.ConfigProto(isolate_session_state=False)
    updated = lib.v1.MirroredStrategy(["CPU:0"]).update_config_proto(config)
    return [updated.isolate_session_state, config.isolate_session_state]


@scenario("MS-1")
def one_device_is_enough(lib: Library) -> Any:
    strategy = mirrored(lib, 1)
    with strategy.scope():
        variable = lib.distribute.Variable(lib.tensor(1.0))
    result = strategy.run(lambda: variable.assign_add(2.0) and replica_id(lib))
    return [strategy.num_replicas_in_sync, result, variable]
