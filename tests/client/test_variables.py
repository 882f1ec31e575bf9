"""Variables: creating, reading and writing them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import stratagem
from stratagem import (
    IndexedSlices,
    PerReplica,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from stratagem._creators import creator_scope
from stratagem._shared_creation import canonical_name
from tests.client.two_replicas import HOME, TwoReplicas

SUM, MEAN = VariableAggregation.SUM, VariableAggregation.MEAN
FIRST, NONE = VariableAggregation.ONLY_FIRST_REPLICA, VariableAggregation.NONE


@pytest.fixture
def strategy() -> TwoReplicas:
    return TwoReplicas()


def number() -> int:
    replica = stratagem.get_replica_context()
    assert replica is not None
    return int(replica.replica_id_in_sync_group or 0)


def shared(strategy: TwoReplicas, value: Any, aggregation: Any = NONE) -> Variable:
    with strategy.scope():
        return Variable(value, aggregation=aggregation)


def written(value: Any, act: Callable[[Variable], Any]) -> Any:
    variable = Variable(value)
    act(variable)
    return variable.numpy().tolist()


# Creating.


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
def test_the_initial_value_says_shape_and_dtype(value: Any, dtype: torch.dtype) -> None:
    """VAR-2: a value or a callable."""
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


def test_a_variable_is_trainable_unless_synchronized_on_read() -> None:
    """VAR-15, VAR-19."""
    on_read = VariableSynchronization.ON_READ
    assert Variable(1.0).trainable
    assert Variable(1.0).value().requires_grad
    assert not Variable(1).value().requires_grad
    assert not Variable(1.0, synchronization=on_read).trainable
    assert Variable(1.0, trainable=True, synchronization=on_read).trainable
    unset: Any = None
    variable = Variable(1.0, synchronization=unset, aggregation=unset)
    assert variable.synchronization is VariableSynchronization.AUTO
    assert variable.aggregation is NONE


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("mode", ["synchronization", "aggregation"])
def test_a_mode_that_does_not_exist_is_refused(
    strategy: TwoReplicas, mode: str, within: bool
) -> None:
    """VAR-21, VAR-22 with ODD-22: the ValueError that was meant."""
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


def test_a_strategy_creates_and_owns_what_is_made_in_its_scope(
    strategy: TwoReplicas,
) -> None:
    """VAR-1, VAR-4, VAR-9, VAR-18, EXT-9."""
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


def test_with_one_replica_there_is_no_wrapper() -> None:
    """VAR-5, VAR-18."""
    one = TwoReplicas(replicas=1)
    variable = shared(one, 1.0)
    assert type(variable).__name__ == "LocalVariable"
    assert variable.distribute_strategy is one
    one.run(lambda: variable.assign(2.0))
    assert variable.numpy() == 2.0


def test_the_innermost_creator_sees_the_call_first(strategy: TwoReplicas) -> None:
    """VAR-1: synchronization and aggregation reach the creators, too."""
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
def test_canonical_names_have_no_numbers(name: str | None, canonical: str) -> None:
    """VAR-10: every `_<digits>` directly before a `/`, and a trailing one."""
    assert canonical_name(name) == canonical


def test_replicas_create_one_variable_together(strategy: TwoReplicas) -> None:
    """VAR-10: Replica 0 really creates; the others get the same."""
    created = []

    def fn() -> tuple[Variable, ...]:
        created.append(number())
        start = float(number() + 5)
        return Variable(start), Variable(start + 1), Variable(start, name="w")

    first, second, named = strategy.run(fn)
    assert created == [0, 1]
    assert [v.name for v in (first, second, named)] == ["Variable", "Variable_1", "w"]
    assert [float(v) for v in (first, second, named)] == [5.0, 6.0, 5.0]


@pytest.mark.parametrize("names", [("a", "b"), ("a", "a", "a")])
def test_replicas_have_to_create_the_same_variables(
    strategy: TwoReplicas, names: tuple[str, ...]
) -> None:
    """VAR-11, VAR-12: “Tried to create variable” … “with mismatching name”."""

    def fn() -> None:
        for name in names[:1] if number() == 0 else names[1:]:
            Variable(1.0, name=name)

    with pytest.raises(
        RuntimeError, match=r"Tried to create variable.*with mismatching name on device"
    ):
        strategy.run(fn)


def test_colocated_variables_know_with_which(strategy: TwoReplicas) -> None:
    """EXT-10, VAR-16."""
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


def test_a_component_knows_its_container(strategy: TwoReplicas) -> None:
    """EXT-8: `value in experimental_local_results(value_container(value))`."""
    container = shared(strategy, 1.0)
    component: Variable = container._variable
    extended = strategy.extended
    assert extended.value_container(component) is container
    assert extended.value_container(container) is container
    assert extended.value_container(5) == 5
    del container
    gc.collect()
    assert extended.value_container(component) is component


def test_the_current_device_is_where_a_plain_variable_goes() -> None:
    with stratagem.device("CPU:3"):
        variable = Variable(1.0)
    assert variable.device_name == "/job:localhost/replica:0/task:0/device:CPU:3"
    assert variable.device == torch.device("cpu")


# Reading.


def test_a_variable_is_usable_wherever_torch_takes_a_tensor() -> None:
    """VRD-8."""
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


def test_equality_is_by_element_and_hash_by_identity() -> None:
    """VRD-12."""
    variable = Variable([1.0, 2.0])
    assert (variable == torch.tensor([1.0, 0.0])).tolist() == [True, False]
    assert (variable != torch.tensor([1.0, 0.0])).tolist() == [False, True]
    assert len({variable, variable, Variable([1.0, 2.0])}) == 2


def test_a_read_value_is_a_snapshot_that_gradients_flow_through() -> None:
    """VRD-7."""
    variable = Variable([1.0, 2.0])
    snapshot, array = variable.read_value(), variable.numpy()
    variable.assign([5.0, 6.0])
    assert snapshot.tolist() == array.tolist() == [1.0, 2.0]
    snapshot.sum().backward()  # type: ignore[no-untyped-call]
    assert variable.grad is not None
    assert variable.grad.tolist() == [1.0, 1.0]
    variable.grad = None
    assert variable.value().grad is None


def test_the_repr_names_and_shows_the_variable() -> None:
    """VRD-13: CS as plain variable."""
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


# Writing.


def test_assignments_replace_add_and_subtract() -> None:
    """VWR-1, VWR-22: `read_value=False` None."""
    variable = Variable([1.0, 2.0])
    assert variable.assign([3.0, 4.0]) is variable
    assert variable.assign_add(torch.ones(2)) is variable
    assert variable.assign_sub(np.array([0.5, 0.5]), read_value=False) is None
    assert variable.numpy().tolist() == [3.5, 4.5]


@pytest.mark.parametrize("value", [1.0, [1.0], [[1.0, 2.0]], [1.0, 2.0, 3.0]])
def test_a_value_of_another_shape_is_refused(value: Any) -> None:
    variable = Variable([1.0, 2.0], name="w")
    with pytest.raises(stratagem.InvalidArgumentError, match=r"'w' has shape \(2,\)"):
        variable.assign(value)
    assert variable.numpy().tolist() == [1.0, 2.0]


def test_a_value_of_another_dtype_is_refused() -> None:
    """VWR-12: dtype error at assign."""
    variable = Variable(1)
    with pytest.raises(stratagem.InvalidArgumentError, match=r"torch\.float64"):
        variable.assign(torch.tensor(1.5, dtype=torch.float64))
    with pytest.raises(stratagem.InvalidArgumentError, match=r"torch\.float32"):
        variable.assign(1.5)
    with pytest.raises(stratagem.InvalidTypeError, match="NoneType"):
        variable.assign(None)
    Variable(1.0, dtype=torch.float64).assign(2)
    assert variable.numpy() == 1


def test_an_assignment_between_forward_and_backward_is_noticed() -> None:
    variable = Variable(2.0)
    loss = variable * variable
    variable.assign(3.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_torch_writes_only_what_lives_here(strategy: TwoReplicas) -> None:
    """In-place functions of torch change plain variables, as tensors."""
    variable, container = Variable([1.0, 2.0]), shared(strategy, 1.0, SUM)
    with torch.no_grad():
        torch.nn.init.zeros_(variable)  # type: ignore[arg-type]
        variable.add_(1.0)
    assert variable.numpy().tolist() == [1.0, 1.0]

    def fn() -> None:
        with torch.no_grad():
            container.add_(1.0)

    with pytest.raises(stratagem.InvalidArgumentError, match="add_; use assign"):
        strategy.run(fn)
    assert container.numpy() == 1.0


@pytest.mark.parametrize(
    ("method", "values", "indices", "expected"),
    [
        ("scatter_add", [1.0, 2.0, 3.0], [0, 2, 2], [3.0, 4.0, 11.0]),
        ("scatter_sub", [1.0, 2.0, 3.0], [0, 2, 2], [1.0, 4.0, 1.0]),
        ("scatter_mul", [2.0, 2.0, 3.0], [0, 2, 2], [4.0, 4.0, 36.0]),
        ("scatter_div", [2.0, 2.0, 3.0], [0, 2, 2], [1.0, 4.0, 1.0]),
        ("scatter_min", [1.0, 9.0, 3.0], [0, 2, 2], [1.0, 4.0, 3.0]),
        ("scatter_max", [1.0, 9.0, 3.0], [0, 2, 2], [2.0, 4.0, 9.0]),
        ("scatter_update", [1.0, 9.0], [0, 2], [1.0, 4.0, 9.0]),
    ],
)
@pytest.mark.parametrize("columns", [(), (2,)])
def test_rows_are_written(
    method: str, values: Any, indices: Any, expected: Any, columns: tuple[int, ...]
) -> None:
    """VSC-1: duplicates accumulate."""

    def wide(numbers: list[float]) -> torch.Tensor:
        column = torch.tensor(numbers).view(-1, *(1 for _ in columns))
        return column.expand(-1, *columns).clone()

    variable = Variable(wide([2.0, 4.0, 6.0]))
    rows = IndexedSlices(wide(values), torch.tensor(indices))
    assert getattr(variable, method)(rows) is variable
    assert torch.equal(variable.read_value(), wide(expected))


def test_rows_that_do_not_fit_are_refused() -> None:
    """VSC-5: delta not IndexedSlices → TypeError."""
    variable = Variable([[1.0], [2.0]])
    with pytest.raises(TypeError, match="scatter_add takes IndexedSlices"):
        variable.scatter_add(torch.ones(2, 1))  # type: ignore[arg-type]
    for values, index in (
        (torch.ones(1, 2), 0),
        (torch.ones(1, 1), 2),
        (torch.ones(1, 1), -1),
        (torch.ones(1, 1, dtype=torch.float64), 0),
    ):
        with pytest.raises(stratagem.InvalidArgumentError):
            variable.scatter_add(IndexedSlices(values, torch.tensor([index])))
    assert variable.numpy().tolist() == [[1.0], [2.0]]


# Writing what replicas share.


@pytest.mark.parametrize(
    ("aggregation", "assigned", "added"), [(SUM, 3.0, 13.0), (MEAN, 1.5, 11.5)]
)
def test_what_replicas_write_is_combined(
    strategy: TwoReplicas, aggregation: Any, assigned: float, added: float
) -> None:
    """VWR-5, VWR-7, VWR-11, VWR-21: the same single handle for all."""
    variable = shared(strategy, 10.0, aggregation)

    def fn(method: str) -> Any:
        return getattr(variable, method)(torch.tensor(1.0 + number()))

    assert strategy.run(fn, ("assign_add",)) is variable
    assert variable.numpy() == added
    strategy.run(fn, ("assign_sub",))
    assert variable.numpy() == 10.0
    strategy.run(fn, ("assign",))
    assert variable.numpy() == assigned


def test_numbers_and_lists_of_replicas_are_combined_whole(
    strategy: TwoReplicas,
) -> None:
    """VWR-5: different values on each replica, of whatever kind."""
    variable = shared(strategy, torch.zeros(2, dtype=torch.float64), SUM)
    strategy.run(lambda: variable.assign([1.0 + number(), 2]))
    assert variable.numpy().tolist() == [3.0, 4.0]


def test_the_same_number_has_no_sum_over_replicas(strategy: TwoReplicas) -> None:
    """VWR-6: ValueError RED-16; N==1 fine."""
    variable = shared(strategy, 1.0, SUM)
    with pytest.raises(ValueError, match=r"non-DistributedValues value 5\.0"):
        strategy.run(lambda: variable.assign(5.0))
    one = TwoReplicas(replicas=1)
    variable = shared(one, 1.0, SUM)
    one.run(lambda: variable.assign(5.0))
    assert variable.numpy() == 5.0


def test_the_same_number_is_its_own_mean(strategy: TwoReplicas) -> None:
    """VWR-8: that value unchanged; assign_add(1) with MEAN → +1."""
    variable = shared(strategy, 1.0, MEAN)
    strategy.run(lambda: variable.assign_add(1.0))
    assert variable.numpy() == 2.0


def test_only_the_first_replica_may_be_heard(strategy: TwoReplicas) -> None:
    """VWR-9: N replicas, ONLY_FIRST global step +1 per run."""
    step = shared(strategy, 0, FIRST)
    strategy.run(lambda: step.assign_add(1))
    strategy.run(lambda: step.assign_add(torch.tensor(1 + number())))
    assert step.numpy() == 2


def test_without_an_aggregation_replicas_cannot_write(strategy: TwoReplicas) -> None:
    """VWR-10 with ODD-1: ValueError “must specify an aggregation method”."""
    variable = shared(strategy, 1.0, NONE)
    with pytest.raises(ValueError, match="must specify an aggregation method"):
        strategy.run(lambda: variable.assign(2.0))
    assert variable.numpy() == 1.0


def test_a_mean_of_integers_does_not_fit_an_integer(strategy: TwoReplicas) -> None:
    """VWR-12: mean is float64 → dtype error at assign."""
    variable = shared(strategy, 1, MEAN)
    with pytest.raises(stratagem.InvalidArgumentError, match=r"torch\.float64"):
        strategy.run(lambda: variable.assign(torch.tensor(number())))


def test_all_replicas_have_to_reach_the_assignment(strategy: TwoReplicas) -> None:
    """VWR-13: RuntimeError MRG-3."""
    variable = shared(strategy, 1.0, SUM)
    with pytest.raises(RuntimeError, match="different number of"):
        strategy.run(lambda: number() or variable.assign(torch.tensor(1.0)))


def test_another_strategy_cannot_write(strategy: TwoReplicas) -> None:
    """VWR-14: RuntimeError “Mixing different”."""
    variable, other = shared(strategy, 1.0, SUM), TwoReplicas()
    foreign = shared(other, 1.0)

    def write(*_: Any) -> None:
        variable.assign(2.0)

    with other.scope(), pytest.raises(RuntimeError, match="Mixing different"):
        write()
    with pytest.raises(RuntimeError, match="Mixing different"):
        other.run(write)
    with pytest.raises(RuntimeError, match="Mixing different"):
        other.extended.update(foreign, write)
    assert variable.numpy() == 1.0


def test_in_cross_replica_context_there_is_one_value(strategy: TwoReplicas) -> None:
    """VWR-1, VWR-3, VWR-15 and ODD-3: a PerReplica is to be reduced first."""
    variable = shared(strategy, 1.0, NONE)
    variable.assign(2.0)
    with strategy.scope():
        variable.assign_add(stratagem.Mirrored((torch.tensor(1.0),) * 2))
        with pytest.raises(ValueError, match=r"strategy\.reduce"):
            variable.assign(PerReplica((torch.tensor(1.0), torch.tensor(2.0))))
    assert variable.numpy() == 3.0


def test_an_update_function_writes_the_variable(strategy: TwoReplicas) -> None:
    """VWR-4, EXT-4: once on the single variable; mirrored arguments unwrapped."""
    variable = shared(strategy, 1.0, NONE)
    mirrored = stratagem.Mirrored((torch.tensor(2.0), torch.tensor(2.0)))

    def fn(v: Variable, x: torch.Tensor, *, scale: float) -> Any:
        assert isinstance(x, torch.Tensor)
        v.assign_add(x * scale)
        return {"a": 1}

    update = strategy.extended.update
    assert update(variable, fn, (mirrored,), {"scale": 2.0}) == {"a": 1}
    grouped = update(variable, fn, (mirrored,), {"scale": 2.0}, group=False)
    assert grouped == {"a": (1,)}
    assert variable.numpy() == 9.0


def test_updating_in_a_replica_is_a_merge_call(strategy: TwoReplicas) -> None:
    """EXT-5: Python literals equal on all replicas stay literals."""
    variable = shared(strategy, 1.0, NONE)
    calls = []

    def fn(v: Variable, x: float) -> None:
        calls.append(x)
        v.assign_add(x)

    strategy.run(lambda: strategy.extended.update(variable, fn, (2.0,)))
    assert calls == [2.0]
    assert variable.numpy() == 3.0


def test_updates_take_nothing_that_differs_between_replicas(
    strategy: TwoReplicas,
) -> None:
    """EXT-4: `PerReplica` arguments to `update` are a ValueError."""
    variable, value = shared(strategy, 1.0), PerReplica((1.0, 2.0))
    extended = strategy.extended
    for update in (extended.update, extended.update_non_slot):
        with pytest.raises(ValueError, match="differs between replicas"):
            update(variable, lambda *_: None, ([value],))


def test_non_slot_variables_are_updated_beside_their_place(
    strategy: TwoReplicas,
) -> None:
    """EXT-6, EXT-7."""
    extended = strategy.extended
    place = extended.non_slot_devices([shared(strategy, 1.0)])
    with strategy.scope(), extended.colocate_vars_with(place):
        step = Variable(0, aggregation=FIRST)
    extended.update_non_slot(place, lambda: step.assign_add(1))
    assert step.numpy() == 1
    assert extended.read_var(step) == 1


def rows_of_replica() -> IndexedSlices:
    """VSC-6: scatter row r by r+2."""
    return IndexedSlices(torch.tensor([number() + 2.0]), torch.tensor([number()]))


@pytest.mark.parametrize(
    ("method", "aggregation", "expected"),
    [
        ("scatter_mul", MEAN, [2.0, 1.5, 1.0]),
        ("scatter_add", SUM, [4.0, 4.0, 1.0]),
        ("scatter_sub", FIRST, [0.0, 1.0, 1.0]),
        ("scatter_max", FIRST, [2.0, 1.0, 1.0]),
    ],
)
def test_rows_of_replicas_are_combined(
    strategy: TwoReplicas, method: str, aggregation: Any, expected: list[float]
) -> None:
    """VSC-2, VSC-3, VSC-6: `[2,1,1]`, scatter_mul idx r by r+2 → `[2, 1.5, 1]`."""
    variable = shared(strategy, [2.0, 1.0, 1.0], aggregation)
    result = strategy.run(lambda: getattr(variable, method)(rows_of_replica()))
    assert result is variable
    assert variable.numpy().tolist() == expected


@pytest.mark.parametrize("method", ["scatter_min", "scatter_max", "scatter_update"])
def test_extremes_of_rows_have_no_sum(strategy: TwoReplicas, method: str) -> None:
    """VSC-2: NotImplementedError naming the method."""
    variable = shared(strategy, [2.0, 1.0], SUM)
    with pytest.raises(NotImplementedError, match=method):
        strategy.run(lambda: getattr(variable, method)(rows_of_replica()))
