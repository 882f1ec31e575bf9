"""Variables with a copy on each device: creation and reading."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    Mirrored,
    MirroredStrategy,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from stratagem._core.distributed_variables import MirroredVariable, SyncOnReadVariable
from tests.client.two_replicas import number

CPU = "/job:localhost/replica:0/task:0/device:CPU:"
ON_READ = VariableSynchronization.ON_READ

pytestmark = pytest.mark.usefixtures("four_cpus")


@pytest.fixture
def strategy() -> MirroredStrategy:
    return MirroredStrategy(["CPU:0", "CPU:1"])


def created(strategy: stratagem.Strategy, *args: Any, **kwargs: Any) -> Variable:
    with strategy.scope():
        return Variable(*args, **kwargs)


def diverged(strategy: MirroredStrategy) -> Variable:
    """A variable whose copies are 1 and 2, to tell them apart."""
    variable = created(strategy, 1.0)
    variable.values[1].value().detach().fill_(2.0)
    return variable


@pytest.mark.spec("VAR-2", "VAR-3")
def test_each_device_gets_a_copy_of_one_initial_value(
    strategy: MirroredStrategy,
) -> None:
    """A random initialiser runs once."""
    variable = created(strategy, lambda: torch.randn(3), name="w")
    assert isinstance(variable, MirroredVariable)
    first, second = variable.values
    assert torch.equal(first.read_value(), second.read_value())
    assert first.value().data_ptr() != second.value().data_ptr()
    assert (first.name, second.name) == ("w", "w/replica_1")
    assert [copy.device_name for copy in variable.values] == [f"{CPU}0", f"{CPU}1"]


@pytest.mark.spec("VAR-18")
def test_copies_belong_to_the_strategy(strategy: MirroredStrategy) -> None:
    variable = created(strategy, 1.0)
    for one in (variable, *variable.values):
        assert one.distribute_strategy is strategy
        assert strategy.extended.variable_created_in_scope(one)
        container = strategy.extended.value_container(one)
        assert container is variable
        locals_ = strategy.experimental_local_results(container)
        assert one is variable or any(one is local for local in locals_)


@pytest.mark.spec("VAR-16")
def test_variables_can_be_put_beside_others(strategy: MirroredStrategy) -> None:
    """What `non_slot_devices` returns will do."""
    first = created(strategy, 1.0)
    extended = strategy.extended
    with strategy.scope():
        for place in (first, extended.non_slot_devices([first])):
            with extended.colocate_vars_with(place):
                assert len(Variable(1.0).values) == 2
        with pytest.raises(ValueError, match="must only be passed a variable created"):
            extended.colocate_vars_with(("CPU:0",))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        pytest.param(
            {"synchronization": VariableSynchronization.NONE},
            "`NONE` variable synchronization mode is not supported.*'v'",
            marks=pytest.mark.spec("VAR-20"),
        ),
        pytest.param(
            {"synchronization": "x"},
            "Invalid variable synchronization mode.*'v'",
            marks=pytest.mark.spec("VAR-21"),
        ),
        pytest.param(
            {"aggregation": "x"},
            "Invalid variable aggregation mode.*'v'",
            marks=pytest.mark.spec("VAR-22"),
        ),
        pytest.param(
            {"aggregation": VariableAggregation.MEAN, "dtype": torch.int64},
            "'v'.*aggregation=MEAN and a non-floating dtype",
            marks=pytest.mark.spec("VAR-23"),
        ),
    ],
)
def test_modes_without_a_meaning_are_refused(
    strategy: MirroredStrategy, kwargs: dict[str, Any], message: str
) -> None:
    """The name is free again afterwards."""
    with pytest.raises(ValueError, match=message):
        created(strategy, 1, name="v", **kwargs)
    assert created(strategy, 1, name="v").name == "v"


@pytest.mark.spec("VRD-1", "VRD-8")
def test_each_replica_reads_its_own_copy(strategy: MirroredStrategy) -> None:
    """In a replica and in an update; every way of reading."""
    variable = diverged(strategy)

    def fn() -> tuple[Any, ...]:
        return (
            variable.read_value(),
            variable.value().detach(),
            variable + 0.0,
            torch.mul(variable, 1.0),  # type: ignore[arg-type]
            torch.tensor(variable.numpy()),
        )

    for result in strategy.run(fn):
        assert [value.tolist() for value in result.values] == [1.0, 2.0]
    read = strategy.extended.update(variable, lambda v: variable.read_value())
    assert isinstance(read, Mirrored)
    assert [float(value) for value in read.values] == [1.0, 2.0]


@pytest.mark.spec("VRD-2", "VRD-11")
def test_outside_of_replicas_the_device_selects_the_copy(
    strategy: MirroredStrategy,
) -> None:
    """The copy on the current device, else the first one."""
    variable = diverged(strategy)
    assert (float(variable), variable.device_name) == (1.0, f"{CPU}0")
    with stratagem.device("CPU:1"):
        assert (float(variable), variable.device_name) == (2.0, f"{CPU}1")
        with strategy.scope():
            assert variable.read_value() == 2.0
    with stratagem.device("CPU:3"):
        assert float(variable) == 1.0


@pytest.mark.spec("VRD-11", "VRD-13")
def test_it_is_described_as_its_first_copy(strategy: MirroredStrategy) -> None:
    """One line per copy."""
    variable = created(strategy, [1.0, 2.0], name="v")
    assert variable.name == "v"
    assert variable.dtype is torch.float32
    assert variable.shape == (2,)
    assert variable.device == torch.device("cpu")
    lines = repr(variable).splitlines()
    assert lines[0] == "MirroredVariable:{"
    assert lines[1].startswith("  0: <Variable 'v' shape=(2,)")
    assert lines[2].startswith("  1: <Variable 'v/replica_1' shape=(2,)")
    assert lines[3] == "}"
    on_read = created(strategy, 1.0, synchronization=ON_READ)
    assert isinstance(on_read, SyncOnReadVariable)
    assert repr(on_read).startswith("SyncOnReadVariable:{")


@pytest.mark.spec("VRD-12")
def test_it_compares_by_elements_and_hashes_by_identity(
    strategy: MirroredStrategy,
) -> None:
    first, second = created(strategy, [1.0, 2.0]), created(strategy, [1.0, 3.0])
    assert (first == second).tolist() == [True, False]
    assert len({first, second, first}) == 2


def test_a_replica_function_returns_the_variable_itself(
    strategy: MirroredStrategy,
) -> None:
    """REG-7: so does one that returns its replica's copy."""
    variable = created(strategy, 1.0)
    assert strategy.run(lambda: variable) is variable
    assert strategy.run(lambda: variable.values[number()]) is variable


def test_gradients_stay_with_their_copies(strategy: MirroredStrategy) -> None:
    variable = created(strategy, 3.0)

    def fn() -> torch.Tensor | None:
        (variable * variable * (number() + 1)).backward()
        return variable.grad

    assert [float(grad) for grad in strategy.run(fn).values] == [6.0, 12.0]
