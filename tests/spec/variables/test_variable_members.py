"""What else variables of every kind can do: elements, references, and what graphs had."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stratagem
from stratagem import (
    IndexedSlices,
    ShardedVariable,
    UnimplementedError,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from tests.client.clusters import running
from tests.client.coordinator.coordination import Coordination
from tests.full import examples

VALUE = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
COPIES = ["mirrored", "on read"]
SINGLE = ["default", "one device", "central", "server", "server, two replicas"]

pytestmark = pytest.mark.usefixtures("two_cpus")


@contextmanager
def strategy_of(kind: str) -> Iterator[stratagem.Strategy]:
    cpus = ["CPU:0", "CPU:1"]
    if kind.startswith("server"):
        replicas = 2 if "two" in kind else 1
        with running(2) as cluster, cluster.strategy(num_replicas_per_worker=replicas) as strategy:
            yield strategy
    elif kind == "central":
        yield stratagem.CentralStorageStrategy(cpus, "CPU:0")
    elif kind in COPIES:
        yield stratagem.MirroredStrategy(cpus)
    else:
        one = stratagem.OneDeviceStrategy("/device:cpu:1")
        yield one if kind == "one device" else stratagem.get_strategy()


@contextmanager
def made(
    kind: str, aggregation: VariableAggregation = VariableAggregation.SUM
) -> Iterator[Variable]:
    names = VariableSynchronization
    how = names.ON_READ if kind == "on read" else names.AUTO
    with strategy_of(kind) as strategy:
        with strategy.scope():
            variable = Variable(VALUE, aggregation=aggregation, synchronization=how)
        yield variable


@pytest.mark.spec("VRD-14")
@pytest.mark.parametrize("kind", [*SINGLE, *COPIES])
def test_a_variable_of_any_kind_tells_of_itself(kind: str) -> None:
    with made(kind, VariableAggregation.MEAN) as variable:
        assert variable.is_initialized(name="a name").item() is True
        assert variable.get_shape() == torch.Size([3, 2])
        assert variable.constraint is None
        assert variable.initializer is None
        assert variable.gather_nd([[2, 1], [0, 0]]).tolist() == [6.0, 1.0]
        assert variable.gather_nd([[[1]]], name="rows").tolist() == [[[3.0, 4.0]]]
        assert {variable.ref(): "it"}[variable.experimental_ref()] == "it"
        assert variable.ref().deref() is variable
        assert variable.ref() != Variable(VALUE).ref()


def test_elements_are_differentiable() -> None:
    variable = Variable(VALUE)
    variable.gather_nd([[0, 1], [0, 1], [2, 0]]).sum().backward()
    assert variable.grad is not None
    assert variable.grad.tolist() == [[0.0, 2.0], [0.0, 0.0], [1.0, 0.0]]


@pytest.mark.spec("VSC-7")
@pytest.mark.parametrize("kind", [*SINGLE, "mirrored"])
def test_writes_of_rows_take_a_lock_and_a_name(kind: str) -> None:
    rows = IndexedSlices(torch.tensor([[2.0, 2.0]]), torch.tensor([1]))
    with made(kind, VariableAggregation.ONLY_FIRST_REPLICA) as variable:
        for each in ("add", "sub", "mul", "div", "min", "max", "update"):
            getattr(variable, f"scatter_{each}")(rows, True, "a name")
        assert variable.numpy().tolist() == [VALUE[0], [2.0, 2.0], VALUE[2]]


@pytest.mark.spec("VSC-7")
def test_shards_take_a_lock_and_a_name() -> None:
    table = ShardedVariable([Variable(VALUE), Variable(VALUE)])
    rows = IndexedSlices(torch.tensor([[2.0, 2.0]]), torch.tensor([4]))
    table.scatter_add(rows, use_locking=True, name="a name")
    table.batch_scatter_update(rows, True, "another")
    assert table.numpy().tolist() == [*VALUE, VALUE[0], [2.0, 2.0], VALUE[2]]


@pytest.mark.spec("VSC-8")
@pytest.mark.parametrize("in_replica", [True, False])
@pytest.mark.parametrize("kind", SINGLE)
def test_elements_of_one_copy_are_written(kind: str, in_replica: bool) -> None:
    with made(kind, VariableAggregation.ONLY_FIRST_REPLICA) as variable:

        def write() -> None:
            variable.scatter_nd_add([[0, 1], [0, 1], [2, 0]], [1.0, 2.0, 3.0])
            variable.scatter_nd_sub([[1]], [[1.0, 1.0]], name="a row")
            variable.scatter_nd_update([[2, 1], [1, 1]], [-1.0, -2.0])
            variable.scatter_nd_min([[0, 0], [1, 1]], [5.0, -9.0])
            variable.scatter_nd_max([[0, 1], [1, 0]], [0.0, 7.0])
            rows = IndexedSlices(torch.tensor([[4.0], [8.0]]), torch.tensor([[1], [0]]))
            variable.batch_scatter_update(rows)

        strategy = variable.distribute_strategy or stratagem.get_strategy()
        if in_replica:
            strategy.run(write)
        else:
            write()
        assert variable.numpy().tolist() == [[1.0, 4.0], [8.0, -9.0], [8.0, -1.0]]


@pytest.mark.spec("VSC-8")
@pytest.mark.parametrize("in_replica", [True, False])
@pytest.mark.parametrize("kind", COPIES)
def test_elements_of_copies_are_not_written(kind: str, in_replica: bool) -> None:
    rows = IndexedSlices(torch.tensor([[4.0]]), torch.tensor([[1]]))
    with made(kind) as variable:
        calls: list[Callable[[], Any]] = [
            lambda: variable.batch_scatter_update(rows),
            lambda: variable.set_shape([3, 2]),
            *(
                lambda each=each: getattr(variable, f"scatter_nd_{each}")([[0, 1]], [7.0])
                for each in ("add", "sub", "min", "max", "update")
            ),
        ]
        strategy = variable.distribute_strategy
        assert strategy is not None
        for call in calls:
            with pytest.raises(UnimplementedError, match="2 copies, for which"):
                strategy.run(call) if in_replica else call()
        assert all(copy.numpy().tolist() == VALUE for copy in variable.values)


@pytest.mark.parametrize("kind", ["central", "server, two replicas"])
def test_several_replicas_do_not_replace_elements(kind: str) -> None:
    with made(kind) as variable:
        strategy = variable.distribute_strategy
        assert strategy is not None
        with pytest.raises(UnimplementedError, match="scatter_update of several replicas"):
            strategy.run(lambda: variable.scatter_nd_update([[0, 1]], [7.0]))
        strategy.run(lambda: variable.scatter_nd_add([[0, 1]], [7.0]))
        assert variable.numpy()[0].tolist() == [1.0, 16.0]


def test_elements_that_others_write_meanwhile_are_kept() -> None:
    with running(1, num_workers=2) as cluster:
        ready = threading.Barrier(2)

        def train(strategy: stratagem.ParameterServerStrategy, worker: int) -> Any:
            with strategy.scope():
                variable = Variable(torch.zeros(2, 2))
            ready.wait(30)
            for number in range(20):
                variable.scatter_nd_update([[0, worker], [1, worker]], [number, number])
            strategy.barrier()
            return variable.numpy().tolist()

        assert cluster.run(train) == [[[19.0, 19.0], [19.0, 19.0]]] * 2


def test_functions_of_a_coordinator_write_elements(coordination: Coordination) -> None:
    with coordination.strategy.scope():
        variable = Variable(VALUE)

    def write() -> Any:
        variable.scatter_nd_add([[0, 1]], [7.0])
        variable.scatter_nd_update([[2, 0]], [8.0])
        return variable.gather_nd([[0, 1], [2, 0]])

    assert coordination.coordinator.schedule(write).fetch().tolist() == [9.0, 8.0]
    assert variable.numpy().tolist() == [[1.0, 9.0], [3.0, 4.0], [8.0, 6.0]]


INDICES: Sequence[tuple[Any, type[Exception]]] = [
    ([[3, 0]], stratagem.InvalidArgumentError),
    ([[0, -1]], stratagem.InvalidArgumentError),
    ([[0, 0, 0]], stratagem.InvalidArgumentError),
    ([[]], stratagem.InvalidArgumentError),
    (0, stratagem.InvalidArgumentError),
    ([[0.0, 1.0]], stratagem.InvalidTypeError),
    ([["a"]], stratagem.InvalidTypeError),
]


@pytest.mark.parametrize(("indices", "error"), INDICES)
def test_elements_that_there_are_not_are_named(indices: Any, error: type[Exception]) -> None:
    variable = Variable(VALUE, name="w")
    with pytest.raises(error, match="'w'"):
        variable.gather_nd(indices)
    with pytest.raises(error, match="'w'"):
        variable.scatter_nd_add(indices, [1.0])
    assert variable.numpy().tolist() == VALUE


@pytest.mark.parametrize("updates", [1.0, [1.0, 2.0], [[1.0]], torch.ones(1, dtype=torch.int64)])
def test_updates_have_the_shape_and_dtype_of_the_elements(updates: Any) -> None:
    variable = Variable(VALUE, name="w")
    with pytest.raises(stratagem.InvalidArgumentError, match="'w'"):
        variable.scatter_nd_update([[0, 1]], updates)
    assert variable.numpy().tolist() == VALUE


def test_batches_of_rows_are_indexed_slices_that_fit() -> None:
    variable = Variable(VALUE, name="w")
    with pytest.raises(stratagem.InvalidTypeError, match="batch_scatter_update takes IndexedSl"):
        variable.batch_scatter_update(torch.ones(3, 1))  # type: ignore[arg-type]
    with pytest.raises(stratagem.InvalidArgumentError, match="has no element"):
        wrong = IndexedSlices(torch.ones(1, 1), torch.tensor([[2]]))
        variable.batch_scatter_update(wrong)
    with pytest.raises(stratagem.InvalidArgumentError, match="one row of values for each index"):
        IndexedSlices(torch.ones(2, 1), torch.tensor([[2]]))


@pytest.fixture(scope="module")
def places() -> Iterator[list[Callable[[torch.Tensor], Variable]]]:
    """Makers of a plain variable, and of one on a server."""
    with running(1) as cluster, cluster.strategy() as strategy:

        def remote(value: torch.Tensor) -> Variable:
            with strategy.scope():
                return Variable(value)

        yield [Variable, remote]


@settings(max_examples=examples(25))
@given(st.data())
def test_elements_are_written_as_one_after_the_other(
    places: list[Callable[[torch.Tensor], Variable]], data: st.DataObject
) -> None:
    shape = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    depth = data.draw(st.integers(1, len(shape)))
    element = st.tuples(*(st.integers(0, size - 1) for size in shape[:depth]))
    indices = data.draw(st.lists(element, min_size=1, max_size=5))
    way = data.draw(st.sampled_from(["add", "sub", "min", "max", "update"]))
    kind = data.draw(st.sampled_from([torch.float32, torch.int64]))
    value = torch.arange(torch.Size(shape).numel()).reshape(shape).to(kind)
    sizes = (len(indices), *shape[depth:])
    updates = torch.arange(torch.Size(sizes).numel()).reshape(sizes).to(kind) * 3 - 4
    expected = value.clone()
    for index, update in zip(indices, updates, strict=True):
        before = expected[index]
        expected[index] = {
            "add": before + update,
            "sub": before - update,
            "min": torch.minimum(before, update),
            "max": torch.maximum(before, update),
            "update": update,
        }[way]
    for place in places:
        variable = place(value)
        getattr(variable, f"scatter_nd_{way}")(indices, updates)
        assert variable.numpy().tolist() == expected.tolist()
        assert torch.equal(variable.gather_nd(indices), torch.stack([expected[i] for i in indices]))


@pytest.mark.spec("VAR-25")
@pytest.mark.parametrize("kind", ["default", "mirrored", "server"])
def test_what_graphs_had_is_refused(kind: str) -> None:
    with made(kind) as variable:
        for name in ("eval", "initialized_value", "count_up_to", "to_proto", "from_proto"):
            with pytest.raises(UnimplementedError, match=f"{name} belongs to graphs .* use "):
                getattr(variable, name)()
        with pytest.raises(UnimplementedError, match="use read_value"):
            _ = variable.initial_value
        with pytest.raises(AttributeError):
            _ = variable.op


@pytest.mark.spec("VAR-25")
@pytest.mark.parametrize("kind", [*SINGLE, *COPIES])
def test_loading_assigns(kind: str) -> None:
    with made(kind) as variable:
        assert variable.load(2 * torch.tensor(VALUE)) is None  # type: ignore[func-returns-value]
        assert variable.numpy().tolist() == [[2.0, 4.0], [6.0, 8.0], [10.0, 12.0]]


@pytest.mark.spec("VAR-25")
def test_a_shape_is_set_that_it_has() -> None:
    variable = Variable(VALUE)
    variable.set_shape([3, None])
    for shape in ([3], [3, 3], [3, 2, 1]):
        with pytest.raises(stratagem.InvalidArgumentError, match="not compatible"):
            variable.set_shape(shape)
