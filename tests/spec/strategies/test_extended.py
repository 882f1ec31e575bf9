"""What libraries ask a strategy about its devices and variables."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import pytest
import torch

import stratagem
from stratagem import (
    CentralStorageStrategy,
    MirroredStrategy,
    OneDeviceStrategy,
    Strategy,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)

pytestmark = pytest.mark.usefixtures("four_cpus")

CPU = "/job:localhost/replica:0/task:0/device:CPU:"
MIRRORED = partial(MirroredStrategy, ["CPU:0", "CPU:1"])
CENTRAL = partial(CentralStorageStrategy, ["CPU:0", "CPU:1"], "/cpu:2")
ONE = partial(OneDeviceStrategy, "CPU:1")
KINDS: dict[str, Callable[[], Strategy]] = {
    "mirrored": MIRRORED,
    "central": CENTRAL,
    "one device": ONE,
}


@pytest.fixture(params=KINDS)
def strategy(request: pytest.FixtureRequest) -> Strategy:
    return KINDS[request.param]()


def shared(strategy: Strategy) -> Variable:
    with strategy.scope():
        return Variable(1.0)


@pytest.mark.spec("EXT-8")
@pytest.mark.parametrize("kind", [MIRRORED, CENTRAL])
def test_a_copy_outlives_what_it_is_a_copy_of(kind: Callable[[], Strategy]) -> None:
    strategy = kind()
    container = shared(strategy)
    inner = getattr(container, "only_copy", container.values[0])
    del container
    gc.collect()
    assert strategy.extended.value_container(inner) is inner


@pytest.mark.spec("EXT-10")
def test_variables_go_where_another_one_is(strategy: Strategy) -> None:
    extended, first, foreign = strategy.extended, shared(strategy), shared(MIRRORED())
    with strategy.scope():
        with extended.colocate_vars_with(first):
            second = Variable(2.0)
        with extended.colocate_vars_with(extended.non_slot_devices([first])):
            third = Variable(3.0)
        with pytest.raises(ValueError, match="must only be passed a variable created"):
            extended.colocate_vars_with(foreign)
    places = [[copy.device_name for copy in v.values] for v in (first, second, third)]
    assert places[0] == places[1] == places[2]


@pytest.mark.spec("EXT-10")
def test_colocating_needs_the_scope(strategy: Strategy) -> None:
    variable = shared(strategy)
    with pytest.raises(RuntimeError, match="scope"):
        strategy.extended.colocate_vars_with(variable)


@pytest.mark.spec("EXT-15")
def test_what_replicas_wrote_is_read_as_one(strategy: Strategy) -> None:
    plain = shared(strategy)
    with strategy.scope():
        counts = Variable(
            0.0,
            synchronization=VariableSynchronization.ON_READ,
            aggregation=VariableAggregation.SUM,
        )
    strategy.run(lambda: counts.assign_add(torch.tensor(2.0)))
    assert strategy.extended.read_var(counts) == 2.0 * strategy.num_replicas_in_sync
    assert strategy.extended.read_var(plain) == 1.0
    assert isinstance(strategy.extended.read_var(plain), torch.Tensor)


@pytest.mark.spec("EXT-15")
def test_only_what_has_copies_is_read_from_copies() -> None:
    plain, tensor = Variable(1.0), torch.tensor(2.0)
    central = CENTRAL()
    assert central.extended.read_var(plain) == 1.0
    read = central.extended.read_var(tensor)
    assert read == 2.0
    assert read is not tensor
    mirrored = MIRRORED()
    for value in (plain, tensor):
        with pytest.raises(ValueError, match="`read_var` takes a variable"):
            mirrored.extended.read_var(value)


@pytest.mark.spec("EXT-20")
@pytest.mark.usefixtures("two_cpus")
def test_each_replica_of_the_process_has_its_devices() -> None:
    cpus = ["CPU:0", "CPU:1"]
    for strategy in (stratagem.MirroredStrategy(cpus), stratagem.CentralStorageStrategy(cpus)):
        devices = strategy.extended.worker_devices
        assert strategy.extended.worker_devices_by_replica == [[each] for each in devices]
    lone = stratagem.OneDeviceStrategy("/device:cpu:1").extended
    assert lone.worker_devices_by_replica == [list(lone.worker_devices)]
    with pytest.raises(stratagem.ContextError):
        _ = stratagem.get_strategy().extended.worker_devices_by_replica
