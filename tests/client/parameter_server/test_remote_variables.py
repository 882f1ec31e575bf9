"""Variables on parameter servers, as users of `Variable` see them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import stratagem
from stratagem import (
    IndexedSlices,
    InvalidArgumentError,
    ParameterServerStrategy,
    UnimplementedError,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from tests.client.clusters import Cluster, running

ON_READ = VariableSynchronization.ON_READ


@pytest.fixture
def chief(cluster: Cluster) -> Iterator[ParameterServerStrategy]:
    with cluster.strategy(0) as strategy:
        yield strategy


@pytest.fixture
def other(cluster: Cluster) -> Iterator[ParameterServerStrategy]:
    with cluster.strategy(1) as strategy:
        yield strategy


def task_of(variable: Variable) -> str:
    return variable.device_name.split("/replica")[1]


def test_variables_go_to_the_servers_in_turn(chief: ParameterServerStrategy) -> None:
    with chief.scope():
        variables = [Variable(float(index)) for index in range(5)]
    tasks = [variable.device_name for variable in variables]
    first, second = (f"/job:ps/replica:0/task:{task}/device:CPU:0" for task in (0, 1))
    assert tasks == [first, second, first, second, first]


def test_colocated_variables_follow_and_do_not_take_a_turn(
    chief: ParameterServerStrategy,
) -> None:
    with chief.scope():
        first = Variable(0.0)
        with chief.extended.colocate_vars_with(first):
            slots = [Variable(0.0), Variable(0.0)]
        second = Variable(0.0)
    assert [v.device_name for v in slots] == [first.device_name] * 2
    assert second.device_name != first.device_name


def test_a_worker_sees_what_another_one_writes(
    chief: ParameterServerStrategy, other: ParameterServerStrategy
) -> None:
    with chief.scope():
        written = Variable([1.0, 2.0], name="w")
    with other.scope():
        seen = Variable([8.0, 9.0], name="w")
    assert seen.numpy().tolist() == [1.0, 2.0]
    written.assign([3.0, 4.0])
    assert seen.numpy().tolist() == [3.0, 4.0]
    seen.assign_add([1.0, 1.0])
    written.assign_sub([0.5, 0.0])
    assert (seen + 0).tolist() == [3.5, 5.0]
    assert written[0].item() == 3.5


def test_traits_are_those_given(chief: ParameterServerStrategy) -> None:
    with chief.scope():
        v = Variable([1, 2], trainable=False, name="steps", dtype=torch.int32)
        again = Variable(0.0, name="steps")
    assert (v.name, v.dtype, v.shape, v.trainable) == (
        "steps",
        torch.int32,
        torch.Size([2]),
        False,
    )
    assert v.device == torch.device("cpu")
    assert v.distribute_strategy is chief
    assert again.name == "steps_1"


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("scatter_add", [2.0, 9.0, 5.0]),
        ("scatter_sub", [2.0, -5.0, 1.0]),
        ("scatter_mul", [2.0, 24.0, 6.0]),
        ("scatter_div", [2.0, 2.0 / 12.0, 1.5]),
        ("scatter_min", [2.0, 2.0, 2.0]),
        ("scatter_max", [2.0, 4.0, 3.0]),
    ],
)
def test_rows_are_written_on_the_server(
    chief: ParameterServerStrategy, method: str, expected: list[float]
) -> None:
    with chief.scope():
        v = Variable([2.0, 2.0, 3.0])
    rows = IndexedSlices(torch.tensor([3.0, 2.0, 4.0]), torch.tensor([1, 2, 1]))
    getattr(v, method)(rows)
    assert v.numpy().tolist() == pytest.approx(expected)


def test_a_value_of_another_shape_or_dtype_is_refused_and_changes_nothing(
    chief: ParameterServerStrategy,
) -> None:
    with chief.scope():
        v = Variable([1.0, 2.0], name="w")
    with pytest.raises(InvalidArgumentError, match="'w' has shape"):
        v.assign(torch.zeros(3))
    with pytest.raises(InvalidArgumentError, match="'w' has dtype"):
        v.assign(torch.zeros(2, dtype=torch.float64))
    with pytest.raises(stratagem.StratagemError, match="w"):
        v.scatter_add(IndexedSlices(torch.zeros(1), torch.tensor([7])))
    assert v.numpy().tolist() == [1.0, 2.0]


def test_a_replica_sees_one_value_from_start_to_end(
    chief: ParameterServerStrategy, other: ParameterServerStrategy
) -> None:
    with chief.scope():
        v = Variable(1.0, name="w")
    with other.scope():
        same = Variable(1.0, name="w")

    def step() -> tuple[float, float]:
        before = v.read_value().item()
        same.assign(before + 1)
        return before, v.read_value().item()

    assert chief.run(step) == (1.0, 1.0)
    assert chief.run(step) == (2.0, 2.0)
    assert v.value().item() == 3.0


def test_a_replica_sees_its_own_write(chief: ParameterServerStrategy) -> None:
    with chief.scope():
        v = Variable(1.0, aggregation=VariableAggregation.SUM)

    def step() -> float:
        v.assign_add(torch.tensor(2.0))
        return v.value().item()

    assert chief.run(step) == 3.0


def test_gradients_reach_the_leaf(chief: ParameterServerStrategy) -> None:
    with chief.scope():
        v = Variable([1.0, 2.0])

    def step() -> torch.Tensor | None:
        (v * v).sum().backward()
        return v.grad

    gradient = chief.run(step)
    assert gradient is not None
    assert gradient.tolist() == [2.0, 4.0]


def test_writes_of_several_replicas_are_combined_and_written_once(
    cluster: Cluster, two_cpus: None
) -> None:
    with cluster.strategy(0, num_replicas_per_worker=2) as strategy:
        with strategy.scope():
            v = Variable(10.0, aggregation=VariableAggregation.MEAN)

        def step() -> float:
            replica = stratagem.get_replica_context()
            assert replica is not None
            number = int(replica.replica_id_in_sync_group or 0)
            v.assign_add(torch.tensor(2.0 * number))
            return v.value().item()

        results = strategy.experimental_local_results(strategy.run(step))
        assert set(results) == {11.0}
        assert strategy.extended.value_container(v._variable) is v


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("aggregation", list(VariableAggregation))
def test_copies_that_are_brought_together_on_read_are_refused(
    cluster: Cluster, two_cpus: None, replicas: int, aggregation: VariableAggregation
) -> None:
    assert cluster.num_workers > 1
    with (
        cluster.strategy(0, num_replicas_per_worker=replicas) as strategy,
        strategy.scope(),
    ):
        with pytest.raises(UnimplementedError, match=r"'seen'.*use assign_add\(\)"):
            Variable(0.0, name="seen", synchronization=ON_READ, aggregation=aggregation)
        assert not strategy.extended.variable_placements()


def test_a_lone_replica_may_have_a_variable_that_is_brought_together_on_read() -> None:
    with running(num_workers=1) as cluster, cluster.strategy(0) as strategy:
        with strategy.scope():
            seen = Variable(1.0, synchronization=ON_READ)
        strategy.run(lambda: seen.assign(3.0))
        assert seen.numpy() == 3.0


def test_a_variable_created_in_a_replica_is_one_for_all_replicas(
    cluster: Cluster, two_cpus: None
) -> None:
    with cluster.strategy(0, num_replicas_per_worker=2) as strategy:
        created = strategy.run(lambda: Variable(1.0, name="late"))
        assert isinstance(created, Variable)
        assert len(strategy.extended.variable_placements()) == 1


def test_rows_may_be_numbered_by_small_integers(
    chief: ParameterServerStrategy,
) -> None:
    with chief.scope():
        v = Variable(torch.zeros(3, 2))
    v.scatter_add(IndexedSlices(torch.ones(1, 2), torch.tensor([1], dtype=torch.int32)))
    assert v.numpy().tolist() == [[0, 0], [1, 1], [0, 0]]


def test_a_module_without_contents_is_named(chief: ParameterServerStrategy) -> None:
    with (
        pytest.raises(InvalidArgumentError, match=r"parameter 'weight' of Linear.*meta"),
        chief.scope(),
    ):
        _module = torch.nn.Linear(2, 2, device="meta")
