"""What libraries ask a strategy about its devices and variables."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import (
    all_kinds,
    central,
    mirrored,
    per_replica,
)


def shared(lib: Library, strategy: Any, name: str | None = None) -> Any:
    """Return a variable of a strategy."""
    with strategy.scope():
        return lib.distribute.Variable(1.0, name=name)


@scenario("EXT-7")
def where_other_variables_go(lib: Library) -> Any:
    results: list[Any] = []
    for strategy in all_kinds(lib):
        variables = [shared(lib, strategy, name) for name in ("b", "a", "c")]
        places = strategy.extended.non_slot_devices(variables)
        results.append(places if isinstance(places, tuple) else places is variables[1])
    return results


@scenario("EXT-7")
def no_variables_have_no_place(lib: Library) -> Any:
    kinds = [all_kinds(lib)[1], all_kinds(lib)[3]]
    return [attempt(each.extended.non_slot_devices, []) for each in kinds]


@scenario("EXT-8")
def what_a_copy_is_a_copy_of(lib: Library) -> Any:
    results = []
    for strategy in all_kinds(lib):
        variable, extended = shared(lib, strategy), strategy.extended
        copies = strategy.experimental_local_results(variable)
        results.append(
            [
                all(extended.value_container(copy) is variable for copy in copies),
                extended.value_container(variable) is variable,
                extended.value_container(3),
            ]
        )
    return results


@scenario("EXT-9")
def whose_a_variable_is(lib: Library) -> Any:
    kinds = all_kinds(lib)
    variables = [shared(lib, each) for each in kinds]
    created = [each.extended.variable_created_in_scope for each in kinds]
    return [[ask(variable) for variable in variables] for ask in created]


def beside(strategy: Any, variable: Any) -> None:
    """Open the scope that colocates variables."""
    strategy.extended.colocate_vars_with(variable).__enter__()


@scenario("EXT-10")
def variables_beside_another_one(lib: Library) -> Any:
    says = ("must only be passed a variable created in this",)
    results = []
    for strategy in all_kinds(lib)[:3]:
        mine, other = shared(lib, strategy), shared(lib, mirrored(lib, 3))
        with strategy.scope(), strategy.extended.colocate_vars_with(mine):
            results.append(lib.distribute.Variable(2.0))
        with strategy.scope():
            results.append(attempt(beside, strategy, other, says=says))
    return results


@scenario("EXT-11", "EXT-12")
def the_devices_of_strategies(lib: Library) -> Any:
    says = ("unsupported",)
    extended = [each.extended for each in all_kinds(lib)]
    return [
        [[type(each.worker_devices).__name__, each.worker_devices] for each in extended[:3]],
        [each.parameter_devices for each in extended[:3]],
        attempt(lambda: extended[3].worker_devices, says=says),
        attempt(lambda: extended[3].parameter_devices, says=says),
    ]


@scenario("EXT-13", "EXT-16", "EXT-17")
def flags_of_strategies(lib: Library) -> Any:
    flags = (
        "experimental_require_static_shapes",
        "experimental_between_graph",
        "experimental_should_init",
        "should_checkpoint",
        "should_save_summary",
    )
    says = ("must be implemented in descendants",)
    return [
        [attempt(getattr, each.extended, flag, says=says) for flag in flags]
        for each in all_kinds(lib)
    ]


@scenario("EXT-14")
def calling_for_each_replica(lib: Library) -> Any:
    results = []
    for strategy in (mirrored(lib), central(lib)):
        value = per_replica(lib, strategy, [lib.tensor(1.0), lib.tensor(2.0)])
        call = strategy.extended.call_for_each_replica
        results.append(call(lambda x, y: x + y, args=(value,), kwargs={"y": 10.0}))
    return results


@scenario("EXT-10")
def any_place_will_do_without_copies(lib: Library) -> Any:
    def placed(strategy: Any, where: Any) -> str:
        with strategy.scope(), strategy.extended.colocate_vars_with(where):
            return str(lib.device_of(lib.distribute.Variable(1.0)))

    default = lib.distribute.get_strategy()
    return [attempt(placed, default, where) for where in ("/device:CPU:1", None)]


@scenario("EXT-15")
def reading_variables(lib: Library) -> Any:
    names, results = lib.distribute, []
    for strategy in all_kinds(lib):
        results.append(strategy.extended.read_var(shared(lib, strategy)))
        with strategy.scope():
            counts = names.Variable(
                2.0,
                synchronization=names.VariableSynchronization.ON_READ,
                aggregation=names.VariableAggregation.SUM,
            )
        results.append(strategy.extended.read_var(counts))
    return results


@scenario("EXT-15")
def reading_what_no_strategy_has(lib: Library) -> Any:
    plain = lib.distribute.Variable(1.0)
    return [
        attempt(strategy.extended.read_var, value)
        for strategy in all_kinds(lib)
        for value in (plain, lib.tensor(2.0), 3.0)
    ]


@scenario("EXT-20")
def the_devices_of_each_replica(lib: Library) -> Any:
    kinds = mirrored(lib), mirrored(lib, 1), central(lib)
    return [strategy.extended.worker_devices_by_replica for strategy in kinds]
