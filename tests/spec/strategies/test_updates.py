"""Functions that run where variables are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    CentralStorageStrategy,
    Mirrored,
    MirroredStrategy,
    OneDeviceStrategy,
    PerReplica,
    Strategy,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from stratagem._core import device_names

pytestmark = pytest.mark.usefixtures("four_cpus")

DEVICES = ["CPU:0", "CPU:1"]
KINDS: dict[str, Callable[[], Strategy]] = {
    "mirrored": partial(MirroredStrategy, DEVICES),
    "central": partial(CentralStorageStrategy, DEVICES),
    "one device": partial(OneDeviceStrategy, "CPU:1"),
    "default": stratagem.get_strategy,
}


def kinds(*names: str) -> pytest.MarkDecorator:
    """Run a test under these strategies."""
    return pytest.mark.parametrize("kind", [KINDS[name] for name in names], ids=names)


def shared(strategy: Strategy, value: Any = 1.0) -> Variable:
    with strategy.scope():
        return Variable(value)


def copies(variable: Variable) -> list[Any]:
    return [copy.numpy().tolist() for copy in variable.values]


def adding(v: Variable, x: Any, *, scale: float = 1.0) -> None:
    v.assign_add(x * scale)


@pytest.mark.spec("EXT-4")
def test_each_copy_gets_its_own_of_mirrored_arguments() -> None:
    strategy = MirroredStrategy(DEVICES)
    variable, slot = shared(strategy), shared(strategy, 5.0)
    mirrored = Mirrored((torch.tensor(10.0), torch.tensor(20.0)))

    def look(v: Variable, x: torch.Tensor, scale: float) -> torch.Tensor:
        return x * scale

    seen = strategy.extended.update(variable, look, (mirrored,), {"scale": 2.0}, group=False)
    assert seen == (20.0, 40.0)

    def fn(v: Variable, s: Variable) -> bool:
        return any(s is beside for beside in slot.values) and s is not slot

    assert strategy.extended.update(variable, fn, (slot,))


@pytest.mark.spec("EXT-4")
@kinds(*KINDS)
def test_arguments_may_not_differ(kind: Callable[[], Strategy]) -> None:
    extended = kind().extended
    with pytest.raises(ValueError, match="differs between replicas"):
        extended.update(shared(kind()), adding, ([PerReplica((1.0, 2.0))],))


@pytest.mark.spec("EXT-4")
@pytest.mark.parametrize("synchronization", ["ON_WRITE", "ON_READ"])
def test_what_copies_were_assigned_is_mirrored(synchronization: str) -> None:
    strategy = MirroredStrategy(DEVICES)
    with strategy.scope():
        variable = Variable(
            1.0,
            synchronization=VariableSynchronization[synchronization],
            aggregation=VariableAggregation.MEAN,
        )
    update = strategy.extended.update
    result = update(variable, lambda v: {"after": v.assign_add(2.0)})["after"]
    assert isinstance(result, Mirrored)
    listed = update(variable, lambda v: v.assign(5.0), group=False)
    variable.assign(0.0)
    assert [value.item() for value in result.values] == [3.0, 3.0]
    assert [value.item() for value in listed] == [5.0, 5.0]
    assert update(variable, lambda v: v) is variable


@pytest.mark.spec("EXT-4")
def test_what_is_updated_is_a_variable() -> None:
    mirrored, central = MirroredStrategy(DEVICES), CentralStorageStrategy(DEVICES)
    for wrong in (3.0, Variable(1.0)):
        with pytest.raises(ValueError, match="created in this strategy's scope"):
            mirrored.extended.update(wrong, lambda v: None)
    with pytest.raises(ValueError, match="must be a Variable"):
        central.extended.update(3.0, lambda v: None)
    plain = Variable(1.0)
    central.extended.update(plain, adding, (2.0,))
    assert plain.numpy() == 3.0
    for one in (OneDeviceStrategy("CPU:0"), stratagem.get_strategy()):
        assert one.extended.update(3.0, lambda v: v + 1) == 4.0


@pytest.mark.spec("EXT-5")
def test_replicas_update_together() -> None:
    """Each call gets the argument of its replica; equal literals stay literals."""
    strategy = MirroredStrategy(DEVICES)
    variable = shared(strategy)
    seen: list[Any] = []

    def add(v: Variable, x: Any, factor: float) -> None:
        seen.append(x)
        v.assign_add(x * factor)

    def fn(x: torch.Tensor) -> None:
        strategy.extended.update(variable, add, (x, 0.0))
        strategy.extended.update(variable, add, (5.0, 1.0))

    strategy.run(fn, (PerReplica((torch.tensor(1.0), torch.tensor(2.0))),))
    assert seen == [1.0, 2.0, 5.0, 5.0]
    assert copies(variable) == [6.0, 6.0]


@pytest.mark.spec("EXT-5")
def test_replicas_update_one_copy_by_what_is_equal() -> None:
    strategy = CentralStorageStrategy(DEVICES)
    variable = shared(strategy)
    strategy.run(lambda: strategy.extended.update(variable, adding, (2.0,)))
    assert copies(variable) == [3.0]
    with pytest.raises(ValueError, match="differs between replicas"):
        strategy.run(
            lambda x: strategy.extended.update(variable, adding, (x,)),
            (PerReplica((1.0, 2.0)),),
        )
    assert copies(variable) == [3.0]


@pytest.mark.spec("EXT-5")
@kinds("mirrored", "central", "one device")
def test_replicas_update_by_what_they_reduced(kind: Callable[[], Strategy]) -> None:
    strategy = kind()
    variable = shared(strategy, torch.tensor([1.0, 1.0]))

    def fn() -> None:
        replica = stratagem.get_replica_context()
        assert replica is not None
        total = replica.all_reduce("sum", torch.tensor([1.0, float("nan")]))
        strategy.extended.update(variable, adding, (total * 2.0,), {"scale": 0.5})

    count = strategy.num_replicas_in_sync
    strategy.run(fn)
    for copy in copies(variable):
        assert copy[0] == 1.0 + count
        assert copy[1] != copy[1]


@pytest.mark.spec("EXT-6")
@kinds(*KINDS)
def test_functions_run_where_other_variables_are(kind: Callable[[], Strategy]) -> None:
    strategy = kind()
    extended, variable = strategy.extended, shared(strategy)
    places = extended.non_slot_devices([variable])
    seen: list[int] = []
    assert extended.update_non_slot(places, lambda x: seen.append(x), (1,)) is None
    assert seen == [1] * len(variable.values)
    result = extended.update_non_slot(places, lambda x: x, ("a",), group=False)
    assert result == ("a",)
    with pytest.raises(ValueError, match="differs between replicas"):
        extended.update_non_slot(places, lambda x: None, (PerReplica((1.0, 2.0)),))


@pytest.mark.spec("EXT-6")
@kinds("mirrored", "central")
def test_other_variables_are_where_non_slot_devices_says(
    kind: Callable[[], Strategy],
) -> None:
    strategy = kind()
    for place in (None, 3, "/device:CPU:0", ["/device:CPU:0"]):
        with pytest.raises(TypeError, match="as `non_slot_devices` returns it"):
            strategy.extended.update_non_slot(place, lambda: None)


@pytest.mark.spec("EXT-6")
def test_a_function_runs_on_the_devices_that_are_named() -> None:
    strategy = MirroredStrategy(DEVICES)
    where = strategy.extended.update_non_slot(("CPU:3",), device_names.current)
    assert where == "/job:localhost/replica:0/task:0/device:CPU:3"
