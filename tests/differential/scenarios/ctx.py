"""Where a thread stands."""

from __future__ import annotations

import copy
import threading
from typing import Any

from tests.differential.answer import attempt
from tests.differential.contexts import MIX, state, strategies
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import mirrored

MISMATCH = "Mismatching tf.distribute.Strategy objects"


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


@scenario("CTX-A14", "CTX-30", "CTX-31", "CTX-32", "REP-10")
def a_replica_that_is_over_does_not_merge(lib: Library) -> Any:
    outside = "Need to be inside `call_for_each_replica()`"
    says = (outside, MISMATCH, "Mismatching ReplicaContext")
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
