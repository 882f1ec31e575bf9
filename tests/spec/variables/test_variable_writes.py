"""Writing variables, from the outside and from replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import stratagem
from stratagem import IndexedSlices, PerReplica, Variable, VariableAggregation
from tests.client.two_replicas import TwoReplicas, number, shared

SUM, MEAN = VariableAggregation.SUM, VariableAggregation.MEAN
FIRST, NONE = VariableAggregation.ONLY_FIRST_REPLICA, VariableAggregation.NONE


@pytest.fixture
def strategy() -> TwoReplicas:
    return TwoReplicas()


@pytest.mark.spec("VWR-1", "VWR-22")
def test_assignments_replace_add_and_subtract() -> None:
    """`read_value=False` None."""
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


@pytest.mark.spec("VWR-12")
def test_a_value_of_another_dtype_is_refused() -> None:
    variable = Variable(1)
    with pytest.raises(stratagem.InvalidArgumentError, match=r"torch\.float64"):
        variable.assign(torch.tensor(1.5, dtype=torch.float64))
    with pytest.raises(stratagem.InvalidTypeError, match=r"torch\.float32"):
        variable.assign(1.5)
    with pytest.raises(stratagem.InvalidArgumentError, match="is None"):
        variable.assign(None)
    Variable(1.0, dtype=torch.float64).assign(2)
    assert variable.numpy() == 1


def test_a_number_that_the_dtype_does_not_hold_is_refused() -> None:
    variable = Variable(torch.zeros(2, dtype=torch.int32), name="steps")
    with pytest.raises(ValueError, match=r"'steps' has dtype torch\.int32, which does"):
        variable.assign([2**40, 0])


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
@pytest.mark.spec("VSC-1")
def test_rows_are_written(
    method: str, values: Any, indices: Any, expected: Any, columns: tuple[int, ...]
) -> None:
    """Duplicates accumulate."""

    def wide(numbers: list[float]) -> torch.Tensor:
        column = torch.tensor(numbers).view(-1, *(1 for _ in columns))
        return column.expand(-1, *columns).clone()

    variable = Variable(wide([2.0, 4.0, 6.0]))
    rows = IndexedSlices(wide(values), torch.tensor(indices))
    assert getattr(variable, method)(rows) is variable
    assert torch.equal(variable.read_value(), wide(expected))


@pytest.mark.spec("VSC-5")
def test_rows_that_do_not_fit_are_refused() -> None:
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


@pytest.mark.parametrize(
    ("aggregation", "assigned", "added"), [(SUM, 3.0, 13.0), (MEAN, 1.5, 11.5)]
)
@pytest.mark.spec("VWR-5", "VWR-7", "VWR-11", "VWR-21")
def test_what_replicas_write_is_combined(
    strategy: TwoReplicas, aggregation: Any, assigned: float, added: float
) -> None:
    """The same single handle for all."""
    variable = shared(strategy, 10.0, aggregation)

    def fn(method: str) -> Any:
        return getattr(variable, method)(torch.tensor(1.0 + number()))

    assert strategy.run(fn, ("assign_add",)) is variable
    assert variable.numpy() == added
    strategy.run(fn, ("assign_sub",))
    assert variable.numpy() == 10.0
    strategy.run(fn, ("assign",))
    assert variable.numpy() == assigned


@pytest.mark.spec("VWR-5")
def test_numbers_and_lists_of_replicas_are_combined_whole(
    strategy: TwoReplicas,
) -> None:
    """Different values on each replica, of whatever kind."""
    variable = shared(strategy, torch.zeros(2, dtype=torch.float64), SUM)
    strategy.run(lambda: variable.assign([1.0 + number(), 2]))
    assert variable.numpy().tolist() == [3.0, 4.0]


@pytest.mark.spec("VWR-12")
def test_a_mean_of_integers_does_not_fit_an_integer(strategy: TwoReplicas) -> None:
    """Mean is float64 → dtype error at assign."""
    variable = shared(strategy, 1, MEAN)
    with pytest.raises(stratagem.InvalidArgumentError, match=r"torch\.float64"):
        strategy.run(lambda: variable.assign(torch.tensor(number())))


@pytest.mark.spec("VWR-14")
def test_another_strategy_cannot_write(strategy: TwoReplicas) -> None:
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


@pytest.mark.spec("VWR-1", "VWR-3", "VWR-15")
def test_in_cross_replica_context_there_is_one_value(strategy: TwoReplicas) -> None:
    """A PerReplica is to be reduced first."""
    variable = shared(strategy, 1.0, NONE)
    variable.assign(2.0)
    with strategy.scope():
        variable.assign_add(stratagem.Mirrored((torch.tensor(1.0),) * 2))
        with pytest.raises(ValueError, match=r"strategy\.reduce"):
            variable.assign(PerReplica((torch.tensor(1.0), torch.tensor(2.0))))
    assert variable.numpy() == 3.0


@pytest.mark.spec("VWR-4")
def test_an_update_function_writes_the_variable(strategy: TwoReplicas) -> None:
    """Once on the single variable; mirrored arguments unwrapped."""
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
@pytest.mark.spec("VSC-2", "VSC-3", "VSC-6")
def test_rows_of_replicas_are_combined(
    strategy: TwoReplicas, method: str, aggregation: Any, expected: list[float]
) -> None:
    """`[2,1,1]`, scatter_mul idx r by r+2 → `[2, 1.5, 1]`."""
    variable = shared(strategy, [2.0, 1.0, 1.0], aggregation)
    result = strategy.run(lambda: getattr(variable, method)(rows_of_replica()))
    assert result is variable
    assert variable.numpy().tolist() == expected
