"""Where a thread stands, and how it gets there."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stratagem
from stratagem._core.contexts import current_replica_id
from stratagem._core.variable_creation import creator_scope
from tests.client.two_replicas import TwoReplicas, number, shared
from tests.spec.contexts.contexts import CROSS, DEFAULT, REPLICA, state

spec = pytest.mark.spec


@pytest.fixture
def strategy() -> TwoReplicas:
    return TwoReplicas()


@spec("CTX-1")
def test_outside_of_scopes_the_default_strategy_runs_its_only_replica() -> None:
    replica = stratagem.get_replica_context()
    assert state() == DEFAULT
    assert replica is not None
    assert replica.strategy is stratagem.get_strategy()
    assert replica.replica_id_in_sync_group == 0
    assert current_replica_id() is None


@spec("CTX-2", "CTX-10")
def test_a_scope_is_the_cross_replica_context_of_its_strategy(
    strategy: TwoReplicas,
) -> None:
    with strategy.scope() as entered:
        assert entered is strategy is stratagem.get_strategy()
        assert state() == CROSS
    assert state() == DEFAULT


@spec("CTX-10")
def test_a_scope_cannot_be_entered_by_a_replica_or_within_another(
    strategy: TwoReplicas,
) -> None:
    with pytest.raises(RuntimeError, match=r"cross-replica context.*merge_call"):
        strategy.run(lambda: strategy.scope().__enter__())
    other = TwoReplicas()
    named = rf"Mixing different.*{strategy}.*{other}"
    with other.scope(), pytest.raises(RuntimeError, match=named):
        strategy.scope().__enter__()


@spec("CTX-3", "CTX-17")
def test_a_replica_function_sees_its_own_replica_context(strategy: TwoReplicas) -> None:
    def look() -> tuple[Any, ...]:
        replica = stratagem.get_replica_context()
        assert replica is not None
        assert replica.strategy is stratagem.get_strategy() is strategy
        assert replica.num_replicas_in_sync == 2
        return state(), number(), current_replica_id()

    states, numbers, indices = strategy.run(look)
    assert states == REPLICA
    assert numbers.values == indices.values == (0, 1)
    assert state() == DEFAULT


@spec("CTX-4", "CTX-20")
def test_an_update_function_runs_in_cross_replica_context(
    strategy: TwoReplicas,
) -> None:
    variable = shared(strategy, 1.0)

    def look(seen: stratagem.Variable) -> tuple[Any, ...]:
        assert seen is variable
        assert stratagem.get_strategy() is strategy
        return state(), current_replica_id(), torch.is_grad_enabled()

    assert strategy.extended.update(variable, look) == (CROSS, 0, False)
    assert state() == DEFAULT


@spec("CTX-20")
def test_an_update_by_replicas_is_a_merge_call(strategy: TwoReplicas) -> None:
    variable, calls = shared(strategy, 1.0), []

    def add(given: stratagem.Variable, amount: float) -> None:
        calls.append(state())
        given.assign_add(amount)

    strategy.run(lambda: strategy.extended.update(variable, add, (2.0,)))
    assert calls == [CROSS]
    assert variable.numpy() == 3.0


@spec("CTX-5")
def test_a_merge_function_of_the_default_replica_runs_across_replicas() -> None:
    replica = stratagem.get_replica_context()
    assert replica is not None

    def merge(strategy: stratagem.Strategy, argument: int) -> tuple[Any, ...]:
        return strategy is stratagem.get_strategy(), state(), argument

    result = replica.merge_call(merge, args=(7,))
    assert result == (True, (False, True, False), 7)


@spec("CTX-6")
def test_the_default_strategy_runs_a_replica_of_its_own() -> None:
    default, outer = stratagem.get_strategy(), stratagem.get_replica_context()
    inner = default.run(stratagem.get_replica_context)
    assert inner is not outer
    assert inner.strategy is default
    assert default.run(state) == DEFAULT


@spec("CTX-11")
def test_scopes_of_one_strategy_nest(strategy: TwoReplicas) -> None:
    outer, inner = strategy.scope(), strategy.scope()
    with outer, inner, outer, inner:
        assert state() == CROSS
    assert state() == DEFAULT
    with inner, strategy.scope() as entered:
        assert entered is strategy
    assert state() == DEFAULT


@spec("CTX-12")
def test_a_scope_object_serves_once_outside_of_others(strategy: TwoReplicas) -> None:
    scope = strategy.scope()
    with scope, scope:
        assert state() == CROSS
    with pytest.raises(stratagem.ContextError, match=r"has been left.*scope\(\)"):
        scope.__enter__()
    assert state() == DEFAULT
    with strategy.scope(), scope:
        assert state() == CROSS


@spec("CTX-12")
def test_a_scope_object_of_the_default_strategy_serves_once() -> None:
    scope = stratagem.get_strategy().scope()
    with scope, scope:
        assert state() == DEFAULT
    with pytest.raises(stratagem.ContextError, match="has been left"):
        scope.__enter__()


@spec("CTX-13")
def test_an_exception_leaves_a_scope_unchanged(strategy: TwoReplicas) -> None:
    trouble = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError) as caught, strategy.scope():
        raise trouble
    assert caught.value is trouble
    assert state() == DEFAULT


@spec("CTX-13")
def test_leaving_a_scope_with_an_open_device_scope_is_refused(
    strategy: TwoReplicas,
) -> None:
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


@spec("CTX-13")
def test_leaving_a_scope_with_an_open_creator_scope_is_refused(
    strategy: TwoReplicas,
) -> None:
    scope = strategy.scope()
    scope.__enter__()
    with (
        creator_scope(lambda following, **kwargs: following(**kwargs)),
        pytest.raises(RuntimeError, match="Variable creator scope nesting error"),
    ):
        scope.__exit__(None, None, None)
    scope.__exit__(None, None, None)
    assert state() == DEFAULT


@spec("CTX-13")
def test_leaving_a_scope_with_another_context_entered_is_refused(
    strategy: TwoReplicas,
) -> None:
    scope = strategy.scope()
    scope.__enter__()
    with (
        stratagem.ReplicaContext(strategy, 0),
        pytest.raises(RuntimeError, match="Strategy scope nesting error"),
    ):
        scope.__exit__(None, None, None)
    scope.__exit__(None, None, None)
    assert state() == DEFAULT


@spec("CTX-14")
def test_the_scope_of_the_default_strategy_changes_next_to_nothing() -> None:
    default = stratagem.get_strategy()
    with default.scope() as entered, default.scope():
        assert entered is default
        assert state() == DEFAULT
        assert stratagem.Variable(1.0).distribute_strategy is None


@spec("CTX-14")
def test_the_scope_of_the_default_strategy_does_not_nest_in_another(
    strategy: TwoReplicas,
) -> None:
    default = stratagem.get_strategy()
    with strategy.scope(), pytest.raises(RuntimeError, match="Must not nest"):
        default.scope().__enter__()


@spec("CTX-15")
def test_a_scope_within_the_default_one_cannot_create_variables(
    strategy: TwoReplicas,
) -> None:
    with stratagem.get_strategy().scope():
        with strategy.scope(), pytest.raises(RuntimeError, match="Mixing different"):
            stratagem.Variable(1.0)
        assert stratagem.Variable(1.0).numpy() == 1.0


@spec("CTX-19")
def test_a_merge_function_runs_once_in_the_calling_thread(
    strategy: TwoReplicas,
) -> None:
    caller, calls = threading.current_thread(), []

    def merge(given: stratagem.Strategy) -> None:
        calls.append((given, state(), threading.current_thread()))

    def fn() -> None:
        replica = stratagem.get_replica_context()
        assert replica is not None
        replica.merge_call(merge)
        assert state() == REPLICA

    strategy.run(fn)
    assert calls == [(strategy, CROSS, caller)]


@spec("CTX-21")
def test_replicas_may_be_run_within_an_update(strategy: TwoReplicas) -> None:
    variable = shared(strategy, 1.0)
    result = strategy.extended.update(variable, lambda v: strategy.run(number))
    assert result.values == (0, 1)


@spec("CTX-34")
def test_colocation_needs_an_open_scope(strategy: TwoReplicas) -> None:
    variable = shared(strategy, 1.0)
    with pytest.raises(RuntimeError, match=r'Need to be inside "with strategy\.scope'):
        strategy.extended.colocate_vars_with(variable)


@spec("CTX-37", "CTX-41")
def test_a_strategy_is_only_copied_deeply(strategy: TwoReplicas) -> None:
    with pytest.raises(RuntimeError, match="Must only deepcopy"):
        copy.copy(strategy)
    twin = copy.deepcopy(strategy)
    assert twin.extended is not strategy.extended
    assert twin.extended._container_strategy() is twin
    assert twin.run(lambda: 3) == 3
    with strategy.scope(), pytest.raises(RuntimeError, match="Mixing different"):
        twin.scope().__enter__()


@spec("CTX-38")
def test_there_is_one_default_strategy() -> None:
    default = stratagem.get_strategy()
    another: Callable[[], Any] = type(default)
    for make in (lambda: copy.deepcopy(default), another):
        with pytest.raises(RuntimeError, match="Should only create a single instance"):
            make()


@spec("CTX-40")
def test_threads_of_the_user_start_in_the_default_context(
    strategy: TwoReplicas,
) -> None:
    seen: list[tuple[bool, bool, bool]] = []
    with strategy.scope():
        thread = threading.Thread(target=lambda: seen.append(state()))
        thread.start()
        thread.join()
        assert state() == CROSS
    assert seen == [DEFAULT]


@spec("CTX-42")
def test_extended_without_its_strategy_says_so() -> None:
    extended = TwoReplicas().extended
    with pytest.raises(stratagem.InvalidArgumentError, match="has been collected"):
        extended.call_for_each_replica(lambda: None)


@spec("CTX-44")
def test_what_needs_its_strategy_enters_or_requires_it(strategy: TwoReplicas) -> None:
    variable = shared(strategy, 1.0)
    assert strategy.extended.update(variable, lambda v: state()) == CROSS
    with strategy.scope():
        assert strategy.extended.update(variable, lambda v: state()) == CROSS
    with TwoReplicas().scope(), pytest.raises(RuntimeError, match="Mixing different"):
        variable.assign(2.0)
    variable.assign(3.0)
    assert variable.numpy() == 3.0
