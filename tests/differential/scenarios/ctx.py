"""Where a thread stands, and what may be called there."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, mirrored, one_device, replica_id

MIX = "Mixing different tf.distribute.Strategy objects"
MISMATCH = "Mismatching tf.distribute.Strategy objects"
NESTING = "scope nesting error"


def strategies(lib: Library) -> list[Any]:
    """Return one strategy of each kind that has a scope."""
    return [one_device(lib), mirrored(lib), central(lib)]


def state(lib: Library) -> list[bool]:
    """Has a strategy, in cross-replica context, has a replica context."""
    names = lib.distribute
    return [
        names.has_strategy(),
        names.in_cross_replica_context(),
        names.get_replica_context() is not None,
    ]


def kept_replica(lib: Library, strategy: Any) -> Any:
    """Return the context of a replica that has ended."""
    kept: list[Any] = []
    strategy.run(lambda: kept.append(lib.distribute.get_replica_context()))
    return kept[0]


def merged(replica: Any) -> Any:
    """Return what a merge call gives."""
    return replica.merge_call(lambda strategy: 1)


@scenario("CTX-1", "CTX-3", "CTX-17", core=(1,))
def a_run_within_and_without_a_scope(lib: Library) -> Any:
    answers = []
    for strategy in strategies(lib):

        def look(strategy: Any = strategy) -> Any:
            replica = lib.distribute.get_replica_context()
            same = lib.distribute.get_strategy() is strategy is replica.strategy
            created = lib.distribute.Variable(1.0)
            owned = strategy.extended.variable_created_in_scope(created)
            merging = replica.merge_call(lambda given: given is strategy)
            return [state(lib), same, owned, merging]

        before = state(lib)
        outside = strategy.run(look)
        with strategy.scope():
            inside = strategy.run(look)
        answers.append([before, outside, inside, state(lib)])
    return answers


@scenario("CTX-2", "CTX-10", core=(2,))
def a_scope_makes_its_strategy_current(lib: Library) -> Any:
    answers = []
    for strategy in strategies(lib):
        with strategy.scope() as given:
            created = lib.distribute.Variable(1.0)
            owned = strategy.extended.variable_created_in_scope(created)
            same = given is strategy is lib.distribute.get_strategy()
            answers.append([state(lib), same, owned])
        answers.append([state(lib)])
    return answers


@scenario("CTX-4", "CTX-20", "CTX-21")
def an_update_is_across_replicas_and_may_run_some(lib: Library) -> Any:
    answers = []
    for strategy in strategies(lib):
        with strategy.scope():
            variable = lib.distribute.Variable(1.0)

        def fn(_: Any, strategy: Any = strategy) -> Any:
            return [*state(lib), strategy.run(lambda: 5)]

        answers.append(strategy.extended.update(variable, fn, group=False))
    return answers


@scenario("CTX-5", "REP-6", core=(9,))
def the_default_replica_merges_at_once(lib: Library) -> Any:
    default = lib.distribute.get_strategy()

    def merge(strategy: Any, argument: Any) -> Any:
        return [strategy is default, state(lib), argument]

    replica = lib.distribute.get_replica_context()
    return [replica.merge_call(merge, args=("bar",)), state(lib)]


@scenario("CTX-6")
def the_default_strategy_runs_a_replica_of_its_own(lib: Library) -> Any:
    default, outer = lib.distribute.get_strategy(), lib.distribute.get_replica_context()

    def fn() -> Any:
        inner = lib.distribute.get_replica_context()
        return [inner is outer, inner.strategy is default, state(lib)]

    return default.run(fn)


@scenario("CTX-11", "CTX-12", "CTX-33", core=(8,))
def scopes_of_one_strategy_nest_in_any_order(lib: Library) -> Any:
    strategy, other = mirrored(lib), mirrored(lib)
    first, second, foreign = strategy.scope(), strategy.scope(), other.scope()
    with first:
        with second:
            with first:
                inner = state(lib)
            middle = state(lib)
        refused = attempt(foreign.__enter__, says=(MIX,))
        outer = state(lib)
    between = state(lib)
    with second:
        return [inner, middle, refused, outer, between, state(lib)]


@scenario("CTX-13", core=(3,), alone=True)
def a_device_scope_must_not_outlast_a_scope(lib: Library) -> Any:
    strategy = mirrored(lib)
    strategy.extended._default_device = "/device:CPU:1"
    scope = strategy.scope()
    scope.__enter__()
    with lib.device("/device:CPU:0"):
        refused = attempt(scope.__exit__, None, None, None, says=(f"Device {NESTING}",))
    inside = state(lib)
    scope.__exit__(None, None, None)
    return [refused, inside, state(lib)]


@scenario("CTX-13", alone=True)
def a_creator_scope_must_not_outlast_a_scope(lib: Library) -> Any:
    scope = mirrored(lib).scope()
    scope.__enter__()
    says = (f"Variable creator {NESTING}",)
    with lib.creator_scope(lambda following, **kwargs: following(**kwargs)):
        refused = attempt(scope.__exit__, None, None, None, says=says)
    scope.__exit__(None, None, None)
    return [refused, state(lib)]


@scenario("CTX-13")
def errors_come_out_of_scopes(lib: Library) -> Any:
    def fail() -> None:
        with mirrored(lib).scope():
            raise KeyError("trouble")

    return [attempt(fail, says=("trouble",)), state(lib)]


@scenario("CTX-14", "CTX-15", core=(10,))
def the_scope_of_the_default_strategy_is_next_to_nothing(lib: Library) -> Any:
    default, other = lib.distribute.get_strategy(), mirrored(lib)

    def create() -> bool:
        return lib.distribute.Variable(1.0) is not None

    with default.scope(), default.scope():
        states = [state(lib), create()]
        with other.scope():
            refused = attempt(create, says=(MIX,))
        states += [state(lib), create()]
    return [states, refused, state(lib)]


@scenario("CTX-14", says=("Must not nest",))
def the_scope_of_the_default_strategy_is_the_outermost(lib: Library) -> Any:
    default = lib.distribute.get_strategy()
    with mirrored(lib).scope(), default.scope():
        return None


@scenario("CTX-16", core=(6,))
def the_strategy_set_last_is_current(lib: Library) -> Any:
    one, other = mirrored(lib), central(lib)
    answers: list[Any] = []
    for strategy in (one, other, other, None):
        lib.distribute.experimental_set_strategy(strategy)
        current = lib.distribute.get_strategy()
        answers.append([current is one, current is other, state(lib)])
    return answers


@scenario("CTX-16", core=(7,))
def no_strategy_is_set_inside_of_a_scope(lib: Library) -> Any:
    strategy, says = mirrored(lib), ("Must not be called inside",)
    set_strategy = lib.distribute.experimental_set_strategy
    with strategy.scope():
        refused = [
            attempt(set_strategy, given, says=says)
            for given in (mirrored(lib), strategy, None)
        ]
    return [refused, state(lib)]


@scenario("CTX-13", "CTX-16", alone=True)
def a_set_strategy_is_replaced_after_what_was_opened_later(lib: Library) -> Any:
    set_strategy = lib.distribute.experimental_set_strategy
    set_strategy(mirrored(lib))
    says = (f"Variable creator {NESTING}", "`with`")
    with lib.creator_scope(lambda following, **kwargs: following(**kwargs)):
        refused = attempt(set_strategy, None, says=says)
        inside = state(lib)
    set_strategy(None)
    return [refused, inside, state(lib)]


@scenario("CTX-16", alone=True)
def the_default_scope_ends_before_a_strategy_is_set(lib: Library) -> Any:
    default, set_strategy = (
        lib.distribute.get_strategy(),
        lib.distribute.experimental_set_strategy,
    )
    scope = default.scope()
    scope.__enter__()
    set_strategy(mirrored(lib))
    says = (f"Variable creator {NESTING}",)
    refused = attempt(scope.__exit__, None, None, None, says=says)
    set_strategy(None)
    attempt(scope.__exit__, None, None, None)
    return [refused, state(lib)]


def across(lib: Library, strategy: Any) -> dict[str, Callable[[], Any]]:
    """Return methods that act across replicas."""
    extended, one = strategy.extended, lib.tensor([1.0])
    pairs = [(one, "/device:CPU:0")]
    return {
        "scope": lambda: strategy.scope().__enter__(),
        "run": lambda: strategy.run(lambda: 1),
        "reduce": lambda: strategy.reduce("MEAN", one, axis=None),
        "reduce an axis": lambda: strategy.reduce("MEAN", one, axis=0),
        "gather": lambda: strategy.gather(one, axis=0),
        "reduce_to": lambda: extended.reduce_to("MEAN", one, "/device:CPU:0"),
        "batch_reduce_to": lambda: extended.batch_reduce_to("MEAN", pairs),
        "update_non_slot": lambda: extended.update_non_slot(
            ("/device:CPU:0",), lambda: None
        ),
        "make_numpy_dataset": lambda: extended.experimental_make_numpy_dataset([1.0]),
        "distribute_dataset": lambda: [
            strategy.experimental_distribute_dataset(lib.range(4).batch(2)) is not None
        ],
        "local_results": lambda: strategy.experimental_local_results(1),
        "num_replicas_in_sync": lambda: strategy.num_replicas_in_sync,
    }


@scenario("CTX-A1", "CTX-A2", "CTX-A3", "CTX-A4", "CTX-A5", "CTX-A7", "CTX-35")
def what_a_replica_may_not_call(lib: Library) -> Any:
    strategy = mirrored(lib)
    calls = across(lib, strategy)
    says = ("cross-replica context", "merge_call", "all_gather")
    answers: list[Any] = []

    def fn() -> None:
        if replica_id(lib) == 0:
            answers.extend([name, attempt(calls[name], says=says)] for name in calls)

    strategy.run(fn)
    return answers


@scenario("CTX-A1", "CTX-A2", "CTX-A3", "CTX-A4", "CTX-A5", "CTX-A7", "CTX-33")
def what_may_not_be_called_under_another_strategy(lib: Library) -> Any:
    calls = across(lib, mirrored(lib))
    calls["update"] = lambda: calls["update_non_slot"]()
    with central(lib).scope():
        return [[name, attempt(call, says=(MIX,))] for name, call in calls.items()]


@scenario("CTX-A6", "CTX-20")
def a_replica_may_update(lib: Library) -> Any:
    strategy = mirrored(lib)
    with strategy.scope():
        variable = lib.distribute.Variable(1.0)
    seen: list[Any] = []

    def add(each: Any) -> None:
        seen.append(state(lib))
        each.assign_add(2.0)

    strategy.run(lambda: strategy.extended.update(variable, add))
    return [seen, variable]


@scenario("CTX-A12", "CTX-34")
def colocation_by_context(lib: Library) -> Any:
    strategy = mirrored(lib)
    with strategy.scope():
        variable = lib.distribute.Variable(1.0)

    def colocate() -> bool:
        return strategy.extended.colocate_vars_with(variable) is not None

    says = ('Need to be inside "with strategy.scope()"', MIX)
    outside = attempt(colocate, says=says)
    with strategy.scope():
        inside = colocate()
    with central(lib).scope():
        elsewhere = attempt(colocate, says=says)
    return [outside, inside, elsewhere, strategy.run(colocate)]


@scenario("CTX-A14", "CTX-30", "CTX-31", "CTX-32", "REP-10")
def a_replica_that_is_over_does_not_merge(lib: Library) -> Any:
    says = ("Need to be inside `call_for_each_replica()`", MISMATCH)
    says += ("Mismatching ReplicaContext",)
    answers = []
    for strategy in strategies(lib):
        over = kept_replica(lib, strategy)

        with strategy.scope():
            crossing = attempt(merged, over, says=says)
        answers.append(
            [
                crossing,
                attempt(merged, over, says=says),
                attempt(strategy.run, merged, (over,), says=says),
                attempt(mirrored(lib).run, merged, (over,), says=says),
            ]
        )
    return answers


@scenario("CTX-A15", "CTX-A16", "REP-10")
def a_replica_that_is_over_still_tells_about_itself(lib: Library) -> Any:
    answers = []
    for strategy in strategies(lib):
        over = kept_replica(lib, strategy)
        with mirrored(lib).scope():
            answers.append(
                [
                    over.strategy is strategy,
                    over.num_replicas_in_sync,
                    over.replica_id_in_sync_group,
                ]
            )
    return answers


def assigned(variable: Any) -> None:
    """Assign to a variable."""
    variable.assign(2.0)


@scenario("CTX-A18", "CTX-44")
def variables_under_another_strategy(lib: Library) -> Any:
    answers = []
    for strategy in strategies(lib):
        with strategy.scope():
            variable = lib.distribute.Variable(1.0)

        with mirrored(lib).scope():
            answers.append(
                [
                    attempt(variable.read_value, says=(MIX,)),
                    attempt(variable.__add__, 1.0, says=(MIX,)),
                    attempt(assigned, variable, says=(MIX,)),
                ]
            )
        assigned(variable)
        answers.append([variable.read_value()])
    return answers


@scenario("CTX-36", says=("all_gather",))
def a_replica_gathers_by_all_gather(lib: Library) -> Any:
    strategy = mirrored(lib)
    return strategy.run(lambda: strategy.gather(lib.tensor([1.0]), axis=0))


@scenario("CTX-37", "CTX-38")
def strategies_are_copied_deeply_or_not_at_all(lib: Library) -> Any:
    default = lib.distribute.get_strategy()
    says = ("Must only deepcopy", "Should only create a single instance")
    return [
        attempt(copy.copy, mirrored(lib), says=says),
        attempt(copy.copy, default, says=says),
        attempt(copy.deepcopy, default, says=says),
        attempt(type(default), says=says),
    ]


@scenario("CTX-41")
def a_deep_copy_is_another_strategy(lib: Library) -> Any:
    answers = []
    for strategy in strategies(lib):
        twin = copy.deepcopy(strategy)
        with strategy.scope():
            refused = attempt(twin.run, lambda: 1, says=(MIX,))
        owner = twin.extended._container_strategy()
        answers.append([owner is twin, twin.run(lambda: 3), refused])
    return answers


@scenario("CTX-40")
def threads_start_in_the_default_context(lib: Library) -> Any:
    seen: list[Any] = []
    with mirrored(lib).scope():
        thread = threading.Thread(target=lambda: seen.append(state(lib)))
        thread.start()
        thread.join()
        return [seen, state(lib)]


@scenario("VAR-1", core=(5,))
def traits_of_a_variable_reach_it(lib: Library) -> Any:
    synchronization = lib.distribute.VariableSynchronization
    aggregation = lib.distribute.VariableAggregation
    with mirrored(lib).scope():
        variable = lib.distribute.Variable(
            1.0,
            synchronization=synchronization.ON_READ,
            aggregation=aggregation.MEAN,
        )
    return [variable.synchronization, variable.aggregation]
