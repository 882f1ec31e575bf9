"""A strategy that a user writes with nothing but public names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import stratagem


class Recording(stratagem.Strategy):
    """Runs one replica and notes which of its methods are called."""

    def __init__(self) -> None:
        super().__init__(RecordingExtended(self))


class RecordingExtended(stratagem.StrategyExtended):
    def __init__(self, strategy: stratagem.Strategy) -> None:
        super().__init__(strategy)
        self.calls: list[str] = []
        self._cluster_resolver = "resolver"

    @property
    def worker_devices(self) -> Sequence[str]:
        return ("/device:CPU:0",)

    def _scope_resources(self, name: str | None) -> Any:
        self.calls.append(f"scope {name}")
        return super()._scope_resources(name)

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> stratagem.Variable:
        self.calls.append(f"create {kwargs['name']}")
        variable: stratagem.Variable = next_creator(**kwargs)
        return variable

    def _before_replicas(self) -> None:
        assert stratagem.in_cross_replica_context()
        self.calls.append("before")

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        self.calls.append("run")
        with stratagem.ReplicaContext(self._container_strategy(), 0):
            return fn(*args, **kwargs)


@pytest.fixture
def strategy() -> Recording:
    return Recording()


def calls(strategy: Recording) -> list[str]:
    extended = strategy.extended
    assert isinstance(extended, RecordingExtended)
    return extended.calls


def test_hooks_are_called_in_the_order_promised(strategy: Recording) -> None:
    with strategy.scope("model"), strategy.scope():
        variable = stratagem.Variable(1.0)
        assert strategy.run(lambda x: x + variable, (2.0,)) == 3.0
    assert calls(strategy) == ["scope model", "create Variable", "before", "run"]


def test_a_run_outside_of_the_scope_opens_no_resources(strategy: Recording) -> None:
    """CTX-17: enters the scope by itself, which is not the user's."""

    def fn() -> str:
        assert stratagem.get_strategy() is strategy
        return stratagem.Variable(1.0).name

    assert strategy.run(fn) == "Variable"
    assert calls(strategy) == ["before", "run", "create Variable"]


def test_a_merge_call_of_the_only_replica_is_routed(strategy: Recording) -> None:
    """CTX-19, REP-6."""

    def fn() -> Any:
        replica = stratagem.get_replica_context()
        assert replica is not None
        return replica.merge_call(
            lambda s, x: (s is strategy, stratagem.in_cross_replica_context(), x), (5,)
        )

    assert strategy.run(fn) == (True, True, 5)


def test_what_is_missing_says_so(strategy: Recording) -> None:
    """EXT: NotImplementedError “must be implemented in descendants”."""
    extended = strategy.extended
    missing: list[Callable[[], Any]] = [
        lambda: strategy.reduce("mean", 1.0),
        lambda: extended.batch_reduce_to("mean", [(1.0, "CPU:0")]),
        lambda: extended.update(None, lambda v: None),
        lambda: extended.update_non_slot(None, lambda: None),
        lambda: extended.non_slot_devices([]),
        lambda: extended.parameter_devices,
        lambda: extended.experimental_should_init,
        lambda: extended.should_checkpoint,
        lambda: extended.should_save_summary,
    ]
    for call in missing:
        with pytest.raises(stratagem.UnimplementedError, match="in descendants"):
            call()


def test_what_is_there_follows_from_the_devices(strategy: Recording) -> None:
    """STR-2, STR-3, STR-4, RED-9."""
    assert strategy.num_replicas_in_sync == 1
    assert strategy.cluster_resolver == "resolver"
    assert strategy.reduce("mean", torch.tensor([1.0, 2.0]), axis=0) == 1.5
    assert strategy.experimental_local_results([1]) == ([1],)
