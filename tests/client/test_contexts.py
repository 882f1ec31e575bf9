"""Where a thread stands, and what may be called there."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stratagem
from stratagem._contexts.context import current_replica_id
from stratagem._variables.creators import creator_scope
from tests.client.two_replicas import TwoReplicas


@pytest.fixture
def strategy() -> TwoReplicas:
    return TwoReplicas()


def state() -> tuple[bool, bool, bool]:
    """Has a strategy, in cross-replica context, has a replica context."""
    return (
        stratagem.has_strategy(),
        stratagem.in_cross_replica_context(),
        stratagem.get_replica_context() is not None,
    )


DEFAULT, CROSS, REPLICA = (False, False, True), (True, True, False), (True, False, True)


def test_outside_of_scopes_the_default_strategy_runs_its_only_replica() -> None:
    """CTX-1."""
    replica = stratagem.get_replica_context()
    assert state() == DEFAULT
    assert replica is not None
    assert replica.strategy is stratagem.get_strategy()
    assert replica.replica_id_in_sync_group == 0
    assert current_replica_id() is None


def test_a_scope_is_the_cross_replica_context_of_its_strategy(
    strategy: TwoReplicas,
) -> None:
    """CTX-2, CTX-10: with … as x gives S."""
    with strategy.scope() as entered:
        assert entered is strategy is stratagem.get_strategy()
        assert state() == CROSS
    assert state() == DEFAULT


def test_a_replica_function_sees_its_own_replica_context(strategy: TwoReplicas) -> None:
    """CTX-3, CTX-17: run enters the scope if needed."""

    def look() -> tuple[Any, ...]:
        replica = stratagem.get_replica_context()
        assert replica is not None
        assert replica.strategy is stratagem.get_strategy() is strategy
        assert replica.num_replicas_in_sync == 2
        return state(), int(replica.replica_id_in_sync_group or 0), current_replica_id()

    states, numbers, indices = strategy.run(look)
    assert states == REPLICA
    assert numbers.values == indices.values == (0, 1)
    assert state() == DEFAULT


def test_an_update_function_runs_in_cross_replica_context(
    strategy: TwoReplicas,
) -> None:
    """CTX-4, CTX-20."""
    with strategy.scope():
        variable = stratagem.Variable(1.0)

    def look(seen: stratagem.Variable) -> tuple[Any, ...]:
        assert seen is variable
        return state(), torch.is_grad_enabled()

    assert strategy.extended.update(variable, look) == (CROSS, False)
    assert state() == DEFAULT


def test_a_merge_function_of_the_default_replica_runs_across_replicas() -> None:
    """CTX-5: has_strategy() is False, the context a cross-replica one."""
    replica = stratagem.get_replica_context()
    assert replica is not None

    def merge(strategy: stratagem.Strategy, argument: int) -> tuple[Any, ...]:
        return strategy is stratagem.get_strategy(), state(), argument

    result = replica.merge_call(merge, args=(7,))
    assert result == (True, (False, True, False), 7)


def test_scopes_of_one_strategy_nest_and_are_reusable(strategy: TwoReplicas) -> None:
    """CTX-11, CTX-12."""
    first, second = strategy.scope(), strategy.scope()
    for outer, inner in ((first, second), (second, first), (first, first)):
        with outer, inner:
            assert state() == CROSS
        assert state() == DEFAULT


def test_an_exception_leaves_a_scope_unchanged(strategy: TwoReplicas) -> None:
    """CTX-13: exceptions of the body propagate unchanged, state is restored."""
    with pytest.raises(ZeroDivisionError), strategy.scope():
        raise ZeroDivisionError
    assert state() == DEFAULT


def test_leaving_a_scope_with_an_open_device_scope_is_refused(
    strategy: TwoReplicas,
) -> None:
    """CTX-13: Device scope nesting error; it can be left properly afterwards."""
    strategy.extended._default_device = "CPU:1"
    scope = strategy.scope()
    scope.__enter__()
    with (
        stratagem.device("CPU:0"),
        pytest.raises(stratagem.ContextError, match="Device scope nesting error"),
    ):
        scope.__exit__(None, None, None)
    assert state() == CROSS
    scope.__exit__(None, None, None)
    assert state() == DEFAULT


def test_leaving_a_scope_with_an_open_creator_scope_is_refused(
    strategy: TwoReplicas,
) -> None:
    """CTX-13: Variable creator scope nesting error."""
    scope = strategy.scope()
    scope.__enter__()
    with (
        creator_scope(lambda following, **kwargs: following(**kwargs)),
        pytest.raises(RuntimeError, match="Variable creator scope nesting error"),
    ):
        scope.__exit__(None, None, None)
    scope.__exit__(None, None, None)
    assert state() == DEFAULT


def test_the_scope_of_the_default_strategy_changes_next_to_nothing() -> None:
    """CTX-14: state stays the default one."""
    default = stratagem.get_strategy()
    with default.scope() as entered, default.scope():
        assert entered is default
        assert state() == DEFAULT
        assert stratagem.Variable(1.0).distribute_strategy is None


def test_the_scope_of_the_default_strategy_does_not_nest_in_another(
    strategy: TwoReplicas,
) -> None:
    """CTX-14: any non-default strategy active → “Must not nest”."""
    default = stratagem.get_strategy()
    with strategy.scope(), pytest.raises(RuntimeError, match="Must not nest"):
        default.scope().__enter__()


def test_a_scope_within_the_default_one_cannot_create_variables(
    strategy: TwoReplicas,
) -> None:
    """CTX-15: RuntimeError “Mixing different”."""
    with stratagem.get_strategy().scope():
        with strategy.scope(), pytest.raises(RuntimeError, match="Mixing different"):
            stratagem.Variable(1.0)
        stratagem.Variable(1.0)


def call_everything(strategy: stratagem.Strategy) -> dict[str, Callable[[], Any]]:
    extended = strategy.extended
    return {
        "scope": lambda: strategy.scope().__enter__(),
        "run": lambda: strategy.run(lambda: None),
        "reduce": lambda: strategy.reduce("mean", 1.0),
        "reduce axis": lambda: strategy.reduce("mean", torch.ones(2), axis=0),
        "reduce_to": lambda: extended.reduce_to("mean", 1.0, "CPU:0"),
        "batch_reduce_to": lambda: extended.batch_reduce_to("mean", [(1.0, "CPU:0")]),
        "update_non_slot": lambda: extended.update_non_slot("CPU:0", lambda: None),
    }


METHODS = tuple(call_everything(TwoReplicas()))


@pytest.mark.parametrize("method", METHODS)
def test_cross_replica_methods_are_refused_in_a_replica(
    strategy: TwoReplicas, method: str
) -> None:
    """CTX-35, CTX-A1 to CTX-A7: “requires being in cross-replica context”."""
    call = call_everything(strategy)[method]
    with pytest.raises(
        stratagem.ContextError, match=r"requires being in cross-replica.*merge_call"
    ):
        strategy.run(call)


@pytest.mark.parametrize("method", [*METHODS, "gather", "update"])
def test_methods_are_refused_within_another_strategy(
    strategy: TwoReplicas, method: str
) -> None:
    """CTX-33, CTX-A1 to CTX-A7: “Mixing different tf.distribute.Strategy objects”."""
    calls = call_everything(strategy)
    calls["gather"] = lambda: strategy.gather(1.0, axis=0)
    calls["update"] = lambda: strategy.extended.update(None, lambda v: None)
    with (
        TwoReplicas().scope(),
        pytest.raises(
            stratagem.ContextError,
            match=r"Mixing different tf\.distribute\.Strategy objects",
        ),
    ):
        calls[method]()


def test_gather_in_a_replica_points_at_all_gather(strategy: TwoReplicas) -> None:
    """CTX-36."""
    with pytest.raises(RuntimeError, match="all_gather"):
        strategy.run(lambda: strategy.gather(torch.ones(1), axis=0))


def test_colocation_needs_an_open_scope(strategy: TwoReplicas) -> None:
    """CTX-34: “Need to be inside "with strategy.scope()"”."""
    with strategy.scope():
        variable = stratagem.Variable(1.0)
    with pytest.raises(RuntimeError, match=r'Need to be inside "with strategy\.scope'):
        strategy.extended.colocate_vars_with(variable)


def replica_of(strategy: stratagem.Strategy) -> stratagem.ReplicaContext:
    replicas = strategy.run(stratagem.get_replica_context)
    found: stratagem.ReplicaContext = replicas.values[0]
    return found


def merge(replica: stratagem.ReplicaContext) -> None:
    replica.merge_call(lambda strategy: None)


def test_a_replica_context_is_refused_in_cross_replica_context(
    strategy: TwoReplicas,
) -> None:
    """CTX-30, REP-10: “Need to be inside `call_for_each_replica()`”."""
    replica = replica_of(strategy)
    with (
        strategy.scope(),
        pytest.raises(RuntimeError, match="inside `call_for_each_replica"),
    ):
        merge(replica)
    assert replica.num_replicas_in_sync == 2


def test_a_stale_replica_context_is_refused(strategy: TwoReplicas) -> None:
    """CTX-31: “Mismatching ReplicaContext”."""
    replica = replica_of(strategy)
    with pytest.raises(RuntimeError, match="Mismatching ReplicaContext"):
        strategy.run(merge, (replica,))


def test_a_replica_context_of_another_strategy_is_refused(
    strategy: TwoReplicas,
) -> None:
    """CTX-32: also any S-context outside every scope."""
    replica = replica_of(strategy)
    message = "Mismatching tf.distribute.Strategy objects"
    with pytest.raises(RuntimeError, match=message):
        merge(replica)
    with pytest.raises(RuntimeError, match=message):
        TwoReplicas().run(merge, (replica,))


def test_a_strategy_is_only_copied_deeply(strategy: TwoReplicas) -> None:
    """CTX-37, CTX-41: the copy is a different strategy."""
    with pytest.raises(RuntimeError, match="Must only deepcopy"):
        copy.copy(strategy)
    twin = copy.deepcopy(strategy)
    assert twin.extended._container_strategy() is twin
    assert twin.run(lambda: 3) == 3
    with strategy.scope(), pytest.raises(RuntimeError, match="Mixing different"):
        twin.scope().__enter__()


def test_there_is_one_default_strategy() -> None:
    """CTX-38, DEF-1."""
    default = stratagem.get_strategy()
    another: Callable[[], Any] = type(default)
    for make in (lambda: copy.deepcopy(default), another):
        with pytest.raises(RuntimeError, match="Should only create a single instance"):
            make()


def test_threads_of_the_user_start_in_the_default_context(
    strategy: TwoReplicas,
) -> None:
    """CTX-40."""
    seen: list[tuple[bool, bool, bool]] = []
    with strategy.scope():
        thread = threading.Thread(target=lambda: seen.append(state()))
        thread.start()
        thread.join()
    assert seen == [DEFAULT]


def test_extended_without_its_strategy_says_so() -> None:
    """CTX-42."""
    extended = TwoReplicas().extended
    with pytest.raises(stratagem.InvalidArgumentError, match="has been collected"):
        extended.call_for_each_replica(lambda: None)
