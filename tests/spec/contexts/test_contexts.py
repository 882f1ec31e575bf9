"""Where a thread stands, and how it gets there."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import stratagem
from stratagem._core.contexts import current_replica_id
from tests.client.two_replicas import TwoReplicas, shared
from tests.spec.contexts.contexts import CROSS, DEFAULT, REPLICA, state

spec = pytest.mark.spec


@pytest.fixture
def strategy() -> TwoReplicas:
    return TwoReplicas()


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
