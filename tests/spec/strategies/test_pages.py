"""Sentences of the reference's pages, as programs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import stratagem
from stratagem import (
    CentralStorageStrategy,
    ConfigProto,
    MirroredStrategy,
    ReduceOp,
    RunOptions,
    Strategy,
    StrategyExtended,
    TPUStrategy,
    Variable,
    VariableAggregation,
    contrib,
)
from stratagem._core import options as core_options
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

pytestmark = pytest.mark.usefixtures("four_cpus")

_OLD = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def strategy() -> MirroredStrategy:
    return MirroredStrategy(["CPU:0", "CPU:1"])


def test_accelerators_need_no_description() -> None:
    assert TPUStrategy().num_replicas_in_sync == 4


@_OLD
def test_a_strategy_says_what_was_created_in_its_scope(
    strategy: MirroredStrategy,
) -> None:
    with strategy.scope():
        inside = Variable(1.0)
    outside = Variable(1.0)
    assert strategy.variable_created_in_scope(inside)
    assert not strategy.variable_created_in_scope(outside)
    with pytest.raises(InvalidTypeError, match="takes a Variable"):
        strategy.variable_created_in_scope(torch.ones(1))


@pytest.mark.parametrize("arguments", [(), (None,), (3,)])
def test_nobody_extends_nothing(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidTypeError, match="extends a strategy"):
        StrategyExtended(*arguments)


@_OLD
def test_the_next_input_may_be_all_arguments(strategy: MirroredStrategy) -> None:
    """`call_for_each_replica(replica_fn, iterator.get_next())`."""
    iterator = strategy.make_input_fn_iterator(lambda _: [1.0, 2.0])
    seen: list[float] = []
    call = strategy.extended.call_for_each_replica
    with pytest.raises(InvalidArgumentError, match="args"):
        call(seen.append, {"a": 1})  # type: ignore[arg-type]
    rows = strategy.experimental_distribute_values_from_function(
        lambda context: torch.tensor(context.replica_id_in_sync_group)
    )
    call(lambda row: seen.append(row.item()), rows)
    assert seen == [0, 1]
    assert iterator.get_next() is not None


@_OLD
def test_values_are_no_iterator(strategy: MirroredStrategy) -> None:
    with pytest.raises(InvalidTypeError, match="get_next"):
        strategy.experimental_run(lambda x: x, torch.ones(2))  # type: ignore[arg-type]


@_OLD
def test_rows_of_arrays_are_distributed_as_they_are(strategy: MirroredStrategy) -> None:
    numpy_input = np.ones([10], dtype=np.float32)
    dataset = strategy.experimental_make_numpy_dataset(numpy_input)
    parts = [each.values for each in strategy.experimental_distribute_dataset(dataset)]
    assert [[part.tolist() for part in one] for one in parts] == [[[1.0], [1.0]]] * 5


@pytest.mark.parametrize("axis", [None, 0])
def test_an_aggregation_is_no_reduction(strategy: MirroredStrategy, axis: int | None) -> None:
    value = strategy.run(lambda: torch.ones(2))
    aggregation: Any = VariableAggregation.SUM
    with pytest.raises((InvalidArgumentError, InvalidTypeError), match="ReduceOp"):
        strategy.reduce(aggregation, value, axis=axis)
    reduced = strategy.extended.reduce_to(aggregation, value, "CPU:0")
    assert reduced.tolist() == [2.0, 2.0]


@_OLD
def test_batches_that_cannot_be_divided_are_refused(strategy: MirroredStrategy) -> None:
    with pytest.raises(InvalidArgumentError, match="make_input_fn_iterator"):
        strategy.make_dataset_iterator(DataLoader(torch.arange(6.0), 3))  # type: ignore[arg-type]


@_OLD
@pytest.mark.parametrize("kind", [MirroredStrategy, CentralStorageStrategy])
def test_another_cluster_is_refused(kind: type[Strategy]) -> None:
    strategy = kind(["CPU:0"])  # type: ignore[arg-type]
    strategy.configure()
    with pytest.raises(InvalidArgumentError, match="ClusterResolver"):
        strategy.configure(cluster_spec={"worker": ["localhost:1"]})
    with pytest.raises(InvalidArgumentError, match="task_type='worker'"):
        strategy.configure(task_type="worker", task_id=0)


def test_a_loop_begins_with_its_initial_values(strategy: MirroredStrategy) -> None:
    dataset = strategy.experimental_distribute_dataset(DataLoader([1.0, 2.0], 2))  # type: ignore[arg-type]
    seen = []

    def step(context: stratagem.MultiStepContext, inputs: Any) -> None:
        seen.append(context.last_step_outputs["loss"])
        context.set_last_step_output("loss", inputs, ReduceOp.SUM)

    run = strategy.extended.experimental_run_steps_on_iterator
    context = run(step, iter(dataset), 1, {"loss": 7.0})
    assert seen == [7.0]
    assert context.last_step_outputs["loss"].item() == 3.0


@_OLD
def test_a_tensor_is_broadcast_to_the_destinations() -> None:
    strategy = contrib.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        found = strategy.broadcast(torch.ones(1), ["CPU:1", "CPU:2"])
    assert len(strategy.unwrap(found)) == 2


@pytest.mark.parametrize(
    "options",
    [
        RunOptions(experimental_enable_dynamic_batch_size=False),
        RunOptions(experimental_bucketizing_dynamic_shape=True),
        RunOptions(experimental_xla_options=object()),
    ],
)
def test_options_without_effect_say_so_once(options: RunOptions) -> None:
    strategy = MirroredStrategy(["CPU:0"])
    core_options.warned.clear()
    with pytest.warns(UserWarning, match=r"RunOptions\.\w+ has no effect"):
        strategy.run(int, options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strategy.run(int, options=options)
        strategy.run(int, options=RunOptions(run_concurrently=True))


@pytest.mark.spec("MS-14")
def test_a_strategy_leaves_what_users_set_of_a_configuration() -> None:
    given = ConfigProto(
        allow_soft_placement=True,
        log_device_placement=True,
        intra_op_parallelism_threads=2,
        inter_op_parallelism_threads=3,
        operation_timeout_in_ms=4,
    )
    updated = MirroredStrategy(["CPU:0"]).update_config_proto(given)
    given.isolate_session_state = True
    assert updated == given
    assert not updated.HasField("experimental")


@pytest.mark.parametrize(
    ("fn", "args", "kwargs"), [(3, (), None), (print, 3, None), (print, (), 3)]
)
def test_what_cannot_be_called_is_refused(
    strategy: MirroredStrategy, fn: Any, args: Any, kwargs: Any
) -> None:
    error = (InvalidTypeError, InvalidArgumentError)
    with strategy.scope():
        variable = Variable(1.0)
        with pytest.raises(error, match=r"function|args"):
            strategy.run(fn, args, kwargs)
        with pytest.raises(error, match=r"function|args"):
            strategy.extended.update(variable, fn, args, kwargs)
        devices = strategy.extended.non_slot_devices([variable])
        with pytest.raises(error, match=r"function|args"):
            strategy.extended.update_non_slot(devices, fn, args, kwargs)


@pytest.mark.parametrize(
    "pairs", [3, None, [3], [(1, "CPU:0", 2)], zip([1], ["CPU:0"], strict=True)]
)
def test_only_pairs_are_reduced_at_once(strategy: MirroredStrategy, pairs: Any) -> None:
    with strategy.scope(), pytest.raises(InvalidTypeError, match="pairs"):
        strategy.extended.batch_reduce_to(ReduceOp.SUM, pairs)


def test_only_a_configuration_is_completed(strategy: MirroredStrategy) -> None:
    nothing: Any = 3
    with pytest.raises(InvalidTypeError, match="ConfigProto"):
        strategy.update_config_proto(nothing)


@pytest.mark.parametrize("nowhere", [3, 2.5, True, object(), int])
def test_what_is_nowhere_is_no_destination(strategy: MirroredStrategy, nowhere: Any) -> None:
    value = strategy.run(lambda: torch.ones(2))
    extended = strategy.extended
    for reduce in (
        lambda: extended.reduce_to("SUM", value, nowhere),
        lambda: extended.batch_reduce_to("SUM", [(value, nowhere)]),
        lambda: extended.broadcast_to(torch.ones(2), nowhere),
    ):
        with pytest.raises(InvalidArgumentError, match="destinations must be one"):
            reduce()
    assert extended.reduce_to("MEAN", 3.0, 3.0) == 3.0


def test_options_of_another_type_are_refused(strategy: MirroredStrategy) -> None:
    with pytest.raises(InvalidTypeError, match="must be RunOptions"):
        strategy.run(int, options={"run_concurrently": True})  # type: ignore[arg-type]
