"""Creating variables and reading them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import stratagem
from stratagem import Variable, VariableAggregation, VariableSynchronization
from stratagem._core.replica_threads import canonical_name
from stratagem._core.variable_creation import creator_scope
from tests.client.two_replicas import HOME, TwoReplicas, number, shared

MEAN = VariableAggregation.MEAN


@pytest.fixture
def strategy() -> TwoReplicas:
    return TwoReplicas()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.5, torch.float32),
        (2, torch.int64),
        ([[1.0], [2.0]], torch.float32),
        (np.ones(2), torch.float64),
        (torch.ones(2, dtype=torch.float16), torch.float16),
        (lambda: torch.ones(2, dtype=torch.int32), torch.int32),
    ],
)
@pytest.mark.spec("VAR-2")
def test_the_initial_value_says_shape_and_dtype(value: Any, dtype: torch.dtype) -> None:
    """A value or a callable."""
    variable = Variable(value)
    expected = torch.as_tensor(value() if callable(value) else value)
    assert variable.dtype == dtype
    assert variable.shape == expected.shape
    assert torch.equal(variable.read_value(), expected)


def test_the_initial_value_is_copied() -> None:
    initial = torch.ones(2)
    variable = Variable(initial)
    initial.zero_()
    assert variable.numpy().tolist() == [1.0, 1.0]
    assert Variable(variable).numpy().tolist() == [1.0, 1.0]


def test_an_initial_value_of_another_shape_is_refused() -> None:
    assert Variable([1, 2], dtype=torch.float64, shape=(2,)).dtype == torch.float64
    with pytest.raises(stratagem.InvalidArgumentError, match=r"\(2,\).*\(3,\)"):
        Variable([1.0, 2.0], shape=(3,))


def test_arguments_are_those_of_the_signature() -> None:
    variable = Variable(1.0, False, "weight")
    assert (variable.trainable, variable.name) == (False, "weight")
    with pytest.raises(TypeError):
        Variable(1.0, nmae="weight")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Variable()  # type: ignore[call-arg]


@pytest.mark.spec("VAR-15", "VAR-19")
def test_a_variable_is_trainable_unless_synchronized_on_read() -> None:
    on_read = VariableSynchronization.ON_READ
    assert Variable(1.0).trainable
    assert Variable(1.0).value().requires_grad
    assert not Variable(1).value().requires_grad
    assert not Variable(1.0, synchronization=on_read).trainable
    assert Variable(1.0, trainable=True, synchronization=on_read).trainable
    unset: Any = None
    variable = Variable(1.0, synchronization=unset, aggregation=unset)
    assert variable.synchronization is VariableSynchronization.AUTO
    assert variable.aggregation is VariableAggregation.NONE


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("synchronization", marks=pytest.mark.spec("VAR-21")),
        pytest.param("aggregation", marks=pytest.mark.spec("VAR-22")),
    ],
)
def test_a_mode_that_does_not_exist_is_refused(
    strategy: TwoReplicas, mode: str, within: bool
) -> None:
    """The ValueError that was meant."""
    scope = strategy.scope() if within else stratagem.get_strategy().scope()
    message = f"Invalid variable {mode} mode: 'sum' for variable 'w'"
    modes: dict[str, Any] = {mode: "sum"}
    with scope, pytest.raises(ValueError, match=message):
        Variable(1.0, name="w", **modes)


def test_names_are_unique_within_a_strategy(strategy: TwoReplicas) -> None:
    with strategy.scope():
        kept = [Variable(1.0), Variable(1.0), Variable(1.0, name="w")]
        again = Variable(1.0, name="w")
    assert [v.name for v in kept] == ["Variable", "Variable_1", "w"]
    assert again.name == "w_1"
    cycle: list[Any] = [again]
    cycle.append(cycle)
    del again, cycle
    with strategy.scope():
        assert Variable(1.0, name="w").name == "w_1"


@pytest.mark.spec("VAR-1", "VAR-4", "VAR-9", "VAR-18")
def test_a_strategy_creates_and_owns_what_is_made_in_its_scope(
    strategy: TwoReplicas,
) -> None:
    with strategy.scope(), strategy.scope():
        variable = Variable(1.0, name="w")
    plain = Variable(1.0)
    assert type(variable).__name__ == "AggregatingVariable"
    assert isinstance(variable, Variable)
    assert variable.distribute_strategy is strategy
    assert variable.device_name == HOME
    assert strategy.extended.variable_created_in_scope(variable)
    assert not strategy.extended.variable_created_in_scope(plain)
    assert not stratagem.get_strategy().extended.variable_created_in_scope(variable)


@pytest.mark.spec("VAR-5", "VAR-18")
def test_with_one_replica_there_is_no_wrapper() -> None:
    one = TwoReplicas(replicas=1)
    variable = shared(one, 1.0)
    assert type(variable).__name__ == "LocalVariable"
    assert variable.distribute_strategy is one
    one.run(lambda: variable.assign(2.0))
    assert variable.numpy() == 2.0


@pytest.mark.spec("VAR-1")
def test_the_innermost_creator_sees_the_call_first(strategy: TwoReplicas) -> None:
    """Synchronization and aggregation reach the creators, too."""
    seen = []

    def noticing(following: Any, **kwargs: Any) -> Any:
        seen.append((kwargs["synchronization"], kwargs["aggregation"]))
        return following(**kwargs | {"name": "renamed"})

    on_write = VariableSynchronization.ON_WRITE
    with strategy.scope(), creator_scope(noticing):
        variable = Variable(1.0, synchronization=on_write, aggregation=MEAN)
    assert seen == [(on_write, MEAN)]
    assert variable.name == "renamed"
    assert (variable.synchronization, variable.aggregation) == (on_write, MEAN)


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        (None, "Variable"),
        ("", "Variable"),
        ("foo_3/bar_1/baz", "foo/bar/baz"),
        ("foo/bar_10", "foo/bar"),
        ("foo_3_4/bar", "foo_3/bar"),
        ("foo_a/_3bar/b4", "foo_a/_3bar/b4"),
    ],
)
@pytest.mark.spec("VAR-10")
def test_canonical_names_have_no_numbers(name: str | None, canonical: str) -> None:
    """Every `_<digits>` directly before a `/`, and a trailing one."""
    assert canonical_name(name) == canonical


@pytest.mark.spec("VAR-10")
def test_replicas_create_one_variable_together(strategy: TwoReplicas) -> None:
    """Replica 0 really creates; the others get the same."""
    created = []

    def fn() -> tuple[Variable, ...]:
        created.append(number())
        start = float(number() + 5)
        return Variable(start), Variable(start + 1), Variable(start, name="w")

    first, second, named = strategy.run(fn)
    assert created == [0, 1]
    assert [v.name for v in (first, second, named)] == ["Variable", "Variable_1", "w"]
    assert [float(v) for v in (first, second, named)] == [5.0, 6.0, 5.0]


@pytest.mark.spec("VAR-16")
def test_colocated_variables_know_with_which(strategy: TwoReplicas) -> None:
    seen = []

    def noticing(following: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["colocate_with"])
        return following(**kwargs)

    variable, foreign = shared(strategy, 1.0), Variable(1.0)
    with strategy.scope():
        with creator_scope(noticing), strategy.extended.colocate_vars_with(variable):
            pass
        with strategy.extended.colocate_vars_with(variable), creator_scope():
            assert Variable(2.0).device_name == variable.device_name
        with pytest.raises(ValueError, match="must only be passed a variable created"):
            strategy.extended.colocate_vars_with(foreign)
    assert not seen


def test_the_current_device_is_where_a_plain_variable_goes() -> None:
    with stratagem.device("CPU:3"):
        variable = Variable(1.0)
    assert variable.device_name == "/job:localhost/replica:0/task:0/device:CPU:3"
    assert variable.device == torch.device("cpu")


# Reading.


@pytest.mark.spec("VRD-8")
def test_a_variable_is_usable_wherever_torch_takes_a_tensor() -> None:
    weight, bias = Variable([[1.0, 2.0]]), Variable([3.0])
    x = torch.ones(1, 2)
    assert torch.nn.functional.linear(x, weight, bias).item() == 6.0  # type: ignore[arg-type]
    assert (x @ weight.T + bias).item() == 6.0
    assert torch.cat([weight, weight]).shape == (2, 2)  # type: ignore[list-item]
    assert torch.stack([bias, bias], dim=0).sum() == 6.0  # type: ignore[list-item]
    assert weight[0, 1] == 2.0
    assert weight.sum() == 3.0
    assert (2 * weight - 1).tolist() == [[1.0, 3.0]]
    assert np.asarray(weight).tolist() == [[1.0, 2.0]]
    assert (float(bias), int(bias), bool(bias), len(weight)) == (3.0, 3, True, 1)
    assert [1, 2, 3][Variable(1)] == 2


@pytest.mark.spec("VRD-12")
def test_equality_is_by_element_and_hash_by_identity() -> None:
    variable = Variable([1.0, 2.0])
    assert (variable == torch.tensor([1.0, 0.0])).tolist() == [True, False]
    assert (variable != torch.tensor([1.0, 0.0])).tolist() == [False, True]
    assert len({variable, variable, Variable([1.0, 2.0])}) == 2


@pytest.mark.spec("VRD-7")
def test_a_read_value_is_a_snapshot_that_gradients_flow_through() -> None:
    variable = Variable([1.0, 2.0])
    snapshot, array = variable.read_value(), variable.numpy()
    variable.assign([5.0, 6.0])
    assert snapshot.tolist() == array.tolist() == [1.0, 2.0]
    snapshot.sum().backward()
    assert variable.grad is not None
    assert variable.grad.tolist() == [1.0, 1.0]
    variable.grad = None
    assert variable.value().grad is None


@pytest.mark.spec("VRD-13")
def test_the_repr_names_and_shows_the_variable() -> None:
    text = repr(Variable(1.5, name="w"))
    assert text == "<Variable 'w' shape=() dtype=torch.float32, value=tensor(1.5000)>"


def test_each_replica_has_gradients_of_its_own(strategy: TwoReplicas) -> None:
    variable = shared(strategy, [1.0, 2.0])

    def fn() -> Any:
        (variable * (number() + 1)).sum().backward()
        return variable.grad

    assert [grad.tolist() for grad in strategy.run(fn).values] == [[1.0] * 2, [2.0] * 2]
    variable.assign([7.0, 8.0])
    seen = strategy.run(lambda: variable.read_value())
    assert [value.tolist() for value in seen.values] == [[7.0, 8.0]] * 2


def test_a_variable_may_be_read_anywhere(strategy: TwoReplicas) -> None:
    """CTX-A18: CS reads work under another strategy's scope, too."""
    variable = shared(strategy, 3.0)
    assert variable.read_value() == 3.0
    with TwoReplicas().scope():
        assert variable + 1 == 4.0
    other = TwoReplicas().run(lambda: float(variable))
    assert other.values == (3.0, 3.0)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("three", stratagem.InvalidTypeError, "cannot be a str"),
        ([[1.0], [2.0, 3.0]], stratagem.InvalidTypeError, "cannot be a list"),
        (torch.eye(2).to_sparse(), stratagem.InvalidArgumentError, r"\.to_dense\(\)"),
        (torch.empty(2, device="meta"), stratagem.InvalidArgumentError, "to_empty"),
    ],
)
def test_an_initial_value_that_is_none_is_refused_with_the_cure(
    value: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Variable(value)


def test_rows_are_numbered_by_integers() -> None:
    with pytest.raises(stratagem.InvalidTypeError, match=r"torch\.int64"):
        stratagem.IndexedSlices(torch.ones(1, 2), torch.tensor([1.0]))


@pytest.mark.parametrize("which", ["one device", "default"])
@pytest.mark.spec("VAR-7")
def test_where_there_is_one_device_variables_are_plain(which: str) -> None:
    one = stratagem.OneDeviceStrategy("CPU:0")
    owner = one if which == "one device" else stratagem.get_strategy()
    with owner.scope():
        variable = Variable(1.0, name="v")
    assert type(variable) is type(Variable(1.0))
    assert variable.values == (variable,)
    assert owner.run(lambda: variable.assign(2.0)) is variable
    assert variable.numpy() == 2.0


COPIED: dict[str, Callable[[], stratagem.Strategy]] = {
    "plain": stratagem.get_strategy,
    "shared": TwoReplicas,
    "central": lambda: stratagem.CentralStorageStrategy(["CPU:0", "CPU:1"]),
    "mirrored": lambda: stratagem.MirroredStrategy(["CPU:0", "CPU:1"]),
}


@pytest.mark.parametrize("owner", COPIED)
@pytest.mark.usefixtures("four_cpus")
@pytest.mark.spec("VAR-18")
def test_a_deep_copy_is_a_variable_of_its_own(owner: str) -> None:
    """Of the same strategy, under a name that is free there."""
    strategy = COPIED[owner]()
    with strategy.scope():
        variable = Variable([1.0, 2.0], name="v", aggregation=MEAN)
    duplicate = copy.deepcopy(variable)
    assert type(duplicate) is type(variable)
    assert duplicate.distribute_strategy is variable.distribute_strategy
    assert duplicate.aggregation is MEAN
    strategy.run(lambda: duplicate.assign([5.0, 6.0]))
    for one in duplicate.values:
        assert one.numpy().tolist() == [5.0, 6.0]
    for one in variable.values:
        assert one.numpy().tolist() == [1.0, 2.0]
    named = {variable.name, *(one.name for one in (*variable.values, duplicate))}
    assert len(named) == (1 if owner == "plain" else len(variable.values) + 1)


@pytest.mark.usefixtures("four_cpus")
def test_a_deep_copied_strategy_has_variables_of_its_own() -> None:
    strategy = COPIED["mirrored"]()
    with strategy.scope():
        holder = {"strategy": strategy, "variable": Variable(1.0, name="v")}
    duplicate = copy.deepcopy(holder)
    variable: Any = duplicate["variable"]
    assert variable.distribute_strategy is duplicate["strategy"]
    assert variable.name == "v"
    variable.assign(2.0)
    assert float(holder["variable"]) == 1.0  # type: ignore[arg-type]
