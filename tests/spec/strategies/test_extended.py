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
    PerReplica,
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
def test_a_copy_knows_what_it_is_a_copy_of(strategy: Strategy) -> None:
    container, extended = shared(strategy), strategy.extended
    inner = getattr(container, "only_copy", container.values[0])
    assert extended.value_container(inner) is container
    assert extended.value_container(container) is container
    assert extended.value_container(5) == 5
    for value in (container, *container.values):
        results = strategy.experimental_local_results(extended.value_container(value))
        assert any(value is one for one in (*results, container))


@pytest.mark.spec("EXT-8")
@pytest.mark.parametrize("kind", [MIRRORED, CENTRAL])
def test_a_copy_outlives_what_it_is_a_copy_of(kind: Callable[[], Strategy]) -> None:
    strategy = kind()
    container = shared(strategy)
    inner = getattr(container, "only_copy", container.values[0])
    del container
    gc.collect()
    assert strategy.extended.value_container(inner) is inner


@pytest.mark.spec("EXT-9")
def test_a_variable_belongs_to_the_strategy_that_made_it(strategy: Strategy) -> None:
    default = stratagem.get_strategy().extended
    mine, plain, foreign = shared(strategy), Variable(1.0), shared(MIRRORED())
    created = strategy.extended.variable_created_in_scope
    assert [created(v) for v in (mine, plain, foreign)] == [True, False, False]
    created = default.variable_created_in_scope
    assert [created(v) for v in (mine, plain, foreign)] == [False, True, False]


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


@pytest.mark.spec("EXT-11")
@pytest.mark.parametrize(
    ("kind", "devices"),
    [
        (MIRRORED, (f"{CPU}0", f"{CPU}1")),
        (CENTRAL, [f"{CPU}0", f"{CPU}1"]),
        (ONE, (f"{CPU}1",)),
    ],
)
def test_replicas_are_on_these_devices(kind: Callable[[], Strategy], devices: object) -> None:
    """A list under `CentralStorageStrategy`, else a tuple."""
    assert kind().extended.worker_devices == devices


@pytest.mark.spec("EXT-12")
@pytest.mark.parametrize(
    ("kind", "devices"),
    [
        (MIRRORED, (f"{CPU}0", f"{CPU}1")),
        (CENTRAL, ("/cpu:2",)),
        (ONE, (f"{CPU}1",)),
    ],
)
def test_variables_are_on_these_devices(kind: Callable[[], Strategy], devices: object) -> None:
    """As the user wrote it under `CentralStorageStrategy`."""
    assert kind().extended.parameter_devices == devices


@pytest.mark.spec("EXT-11", "EXT-12")
def test_the_default_strategy_has_no_devices() -> None:
    extended = stratagem.get_strategy().extended
    for name in ("worker_devices", "parameter_devices"):
        with pytest.raises(RuntimeError, match="unsupported by the default"):
            getattr(extended, name)
    assert MIRRORED().extended.worker_devices == MIRRORED().extended.parameter_devices


@pytest.mark.spec("EXT-13")
def test_shapes_may_change(strategy: Strategy) -> None:
    assert strategy.extended.experimental_require_static_shapes is False


@pytest.mark.spec("EXT-14")
def test_running_is_a_method_of_its_own(strategy: Strategy) -> None:
    each = PerReplica((1.0, 2.0)[: strategy.num_replicas_in_sync])
    result = strategy.extended.call_for_each_replica(lambda x, y: x + y, (each,), {"y": 10.0})
    expected = (11.0, 12.0)[: strategy.num_replicas_in_sync]
    assert strategy.experimental_local_results(result) == expected


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


@pytest.mark.spec("EXT-16")
@pytest.mark.parametrize(("kind", "each"), [(MIRRORED, False), (CENTRAL, True), (ONE, False)])
def test_whether_each_worker_runs_the_program(kind: Callable[[], Strategy], each: bool) -> None:
    assert kind().extended.experimental_between_graph is each


@pytest.mark.spec("EXT-17")
def test_the_only_process_does_what_the_chief_does(strategy: Strategy) -> None:
    extended = strategy.extended
    assert extended.experimental_should_init is True
    assert extended.should_checkpoint is True
    assert extended.should_save_summary is True


@pytest.mark.spec("EXT-16", "EXT-17")
def test_the_default_strategy_does_not_say_all() -> None:
    extended = stratagem.get_strategy().extended
    for name in ("experimental_between_graph", "experimental_should_init"):
        with pytest.raises(NotImplementedError, match="in descendants"):
            getattr(extended, name)
    assert extended.should_checkpoint
    assert extended.should_save_summary


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
