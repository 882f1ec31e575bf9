"""Towers, which replicas were called in TensorFlow 1.12."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Barrier
from typing import Any

import pytest
import torch

from stratagem import Variable, VariableAggregation, contrib
from tests.spec.towers.towers import CPU, numbers, per_tower, tower

pytestmark = [
    pytest.mark.usefixtures("four_cpus"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def strategy() -> contrib.MirroredStrategy:
    return contrib.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def in_scope(strategy: contrib.MirroredStrategy) -> Iterator[None]:
    with strategy.scope():
        yield


@pytest.mark.spec("TWR-1")
def test_a_scope_gives_its_strategy_and_makes_it_current(
    strategy: contrib.MirroredStrategy,
) -> None:
    with strategy.scope() as entered:
        assert entered is strategy
        assert contrib.get_distribution_strategy() is strategy
        assert contrib.get_cross_tower_context() is strategy
        assert contrib.get_cross_replica_context() is strategy
        assert contrib.has_distribution_strategy()
        assert contrib.in_cross_tower_context()
        assert contrib.get_tower_context() is None
        assert len(Variable(1.0).values) == 2
    assert not contrib.has_distribution_strategy()
    assert not contrib.in_cross_tower_context()
    assert contrib.get_cross_tower_context() is None
    assert tower().distribution_strategy is not strategy


@pytest.mark.spec("TWR-2", "REP-11")
def test_a_function_is_called_once_per_tower(
    strategy: contrib.MirroredStrategy, in_scope: None
) -> None:
    def fn(value: torch.Tensor, factor: int) -> Any:
        assert tower().distribution_strategy is strategy
        assert (tower().num_towers, tower().is_single_tower) == (2, False)
        return value * factor, tower().tower_id, tower().device

    inputs = per_tower(1.0, 2.0)
    call = strategy.call_for_each_tower
    values, ids, devices = call(fn, inputs, factor=10, run_concurrently=True)
    assert numbers(strategy.unwrap(values)) == [10, 20]
    assert strategy.unwrap(ids) == [0, 1]
    assert strategy.unwrap(devices) == [f"{CPU}0", f"{CPU}1"]


@pytest.mark.spec("TWR-2")
def test_towers_overlap_unless_they_are_not_to(
    strategy: contrib.MirroredStrategy, in_scope: None
) -> None:
    both = Barrier(2)
    strategy.call_for_each_tower(lambda: both.wait(timeout=60))
    order: list[Any] = []

    def fn() -> None:
        order.append(("begins", tower().tower_id))
        order.append(("ends", tower().tower_id))

    strategy.call_for_each_tower(fn, run_concurrently=False)
    assert order == [(what, i) for i in (0, 1) for what in ("begins", "ends")]


@pytest.mark.spec("CTX-18", "TWR-2")
def test_towers_need_an_open_scope(strategy: contrib.MirroredStrategy) -> None:
    with pytest.raises(RuntimeError, match=r"inside .with strategy.scope"):
        strategy.call_for_each_tower(lambda: None)
    other = contrib.OneDeviceStrategy("CPU:0")
    with other.scope(), pytest.raises(RuntimeError, match="Mixing different"):
        strategy.call_for_each_tower(lambda: None)


Call = Callable[[contrib.DistributionStrategy], Any]
SUM, MEAN = VariableAggregation.SUM, VariableAggregation.MEAN
BETWEEN_TOWERS: dict[str, Call] = {
    "call_for_each_tower": lambda s: s.call_for_each_tower(lambda: None),
    "reduce": lambda s: s.reduce(MEAN, 1.0, "CPU:0"),
    "batch_reduce": lambda s: s.batch_reduce(MEAN, [(1.0, "CPU:0")]),
    "broadcast": lambda s: s.broadcast(torch.ones(1)),
    "update": lambda s: s.update(Variable(1.0), lambda v: None),
    "update_non_slot": lambda s: s.update_non_slot("CPU:0", lambda: None),
    "map": lambda s: s.map([1], lambda x: x),
    "worker_device_index": lambda s: s.worker_device_index,
    "run_steps_on_dataset": lambda s: s.run_steps_on_dataset(print, None),  # type: ignore[arg-type]
}


@pytest.mark.spec("TWR-19")
@pytest.mark.parametrize("method", BETWEEN_TOWERS)
def test_methods_are_for_between_towers(strategy: contrib.MirroredStrategy, method: str) -> None:
    call = BETWEEN_TOWERS[method]
    with pytest.raises(RuntimeError, match=r"inside .with strategy.scope"):
        call(strategy)
    with strategy.scope(), pytest.raises(RuntimeError, match="cross-tower context"):
        strategy.call_for_each_tower(lambda: call(strategy))


@pytest.mark.spec("CTX-35", "TWR-1")
def test_a_tower_enters_no_scope(strategy: contrib.MirroredStrategy, in_scope: None) -> None:
    def fn() -> None:
        with strategy.scope():
            pass

    with pytest.raises(RuntimeError, match="requires being in cross-tower context"):
        strategy.call_for_each_tower(fn)


@pytest.mark.spec("CTX-30", "CTX-31", "TWR-3")
def test_a_tower_context_is_for_its_tower(
    strategy: contrib.MirroredStrategy, in_scope: None
) -> None:
    kept: list[contrib.TowerContext] = []
    strategy.call_for_each_tower(lambda: kept.append(tower()))
    old = kept[0]
    assert old.num_towers == 2
    calls: list[Callable[[], Any]] = [
        lambda: old.merge_call(lambda distribution: None),
        lambda: old.tower_id,
        lambda: old.device,
        lambda: old.is_single_tower,
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=r"inside `call_for_each_tower\(\)`"):
            call()
        with pytest.raises(RuntimeError, match="Mismatching tower context"):
            strategy.call_for_each_tower(call)
