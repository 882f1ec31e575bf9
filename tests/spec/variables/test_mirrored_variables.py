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
from stratagem._core.variable_creation import creator_scope
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


@pytest.mark.parametrize("mode", ["AUTO", "ON_WRITE", None])
@pytest.mark.spec("VAR-3", "VAR-19")
def test_copies_are_mirrored_unless_on_read(strategy: MirroredStrategy, mode: str | None) -> None:
    synchronization = None if mode is None else VariableSynchronization[mode]
    variable = created(strategy, 1.0, synchronization=synchronization)
    assert isinstance(variable, MirroredVariable)
    assert variable.synchronization is VariableSynchronization.ON_WRITE
    assert isinstance(created(strategy, 1.0, synchronization=ON_READ), Variable)


@pytest.mark.spec("VAR-1")
def test_creators_of_the_user_see_both_sides(strategy: MirroredStrategy) -> None:
    """The outer one is called once per copy, the inner one once."""
    outer: list[str] = []
    inner: list[str] = []

    def note(seen: list[str]) -> Any:
        def creator(next_creator: Any, **kwargs: Any) -> Any:
            seen.append(kwargs["name"])
            return next_creator(**kwargs)

        return creator

    with creator_scope(note(outer)), strategy.scope(), creator_scope(note(inner)):
        Variable(1.0, name="v")
    assert (outer, inner) == (["v", "v/replica_1"], ["v"])


@pytest.mark.spec("VAR-9")
def test_a_nested_scope_wraps_once(strategy: MirroredStrategy) -> None:
    with strategy.scope(), strategy.scope():
        variable = Variable(1.0)
    assert [type(copy).__name__ for copy in variable.values] == ["LocalVariable"] * 2


@pytest.mark.spec("VAR-10")
def test_replicas_create_a_variable_together(strategy: MirroredStrategy) -> None:
    variable = strategy.run(lambda: Variable(float(number()), name="v"))
    assert isinstance(variable, MirroredVariable)
    assert [float(copy) for copy in variable.values] == [0.0, 0.0]


@pytest.mark.parametrize(
    "second",
    [
        pytest.param("other", marks=pytest.mark.spec("VAR-11")),
        pytest.param("v", marks=pytest.mark.spec("VAR-12")),
    ],
)
def test_replicas_have_to_create_the_same(strategy: MirroredStrategy, second: str) -> None:

    def fn() -> None:
        Variable(1.0, name="v" if number() == 0 else second)
        if number() and second == "v":
            Variable(1.0, name="v")

    with pytest.raises(RuntimeError, match="with mismatching name on device"):
        strategy.run(fn)


@pytest.mark.spec("VAR-15")
def test_variables_are_trainable_unless_on_read(strategy: MirroredStrategy) -> None:
    """An explicit True is kept."""
    assert created(strategy, 1.0).trainable
    assert not created(strategy, 1.0, synchronization=ON_READ).trainable
    assert created(strategy, 1.0, trainable=True, synchronization=ON_READ).trainable


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


@pytest.mark.spec("VRD-9", "VRD-10")
def test_its_copies_can_be_had(strategy: MirroredStrategy) -> None:
    variable = created(strategy, [1.0])
    results = strategy.experimental_local_results(variable)
    assert results is variable.values
    assert len(results) == 2


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


@pytest.mark.spec("VAR-10")
def test_replicas_match_their_variables_by_canonical_name(
    strategy: MirroredStrategy,
) -> None:
    """Numbers that differ do not matter; the name is that of the first replica."""
    named = strategy.run(lambda: Variable(1.0, name=f"foo_{number()}"))
    assert named.name == "foo_0"
    names = ["foo/bar", "foo_1/bar", "foo_1/bar_1", "foo/bar_1"]
    several = strategy.run(lambda: [Variable(1.0, name=name) for name in names])
    assert [variable.name for variable in several] == names
    assert len(set(several)) == 4


@pytest.mark.parametrize("synchronization", ["AUTO", "ON_READ"])
@pytest.mark.spec("VAR-3")
def test_variables_made_in_replicas_start_alike(
    strategy: MirroredStrategy, synchronization: str
) -> None:
    """A random initialiser runs on the first replica only."""
    mode = VariableSynchronization[synchronization]

    def fn() -> Variable:
        return Variable(lambda: torch.rand(3), synchronization=mode)

    first, second = strategy.run(fn).values
    assert torch.equal(first.read_value(), second.read_value())
