"""Sums and means over replicas."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import (
    all_kinds,
    both,
    central,
    mirrored,
    one_device,
    per_replica,
    replica_id,
)


@scenario("RED-15", "RED-26", core=(64,))
def the_mean_of_a_plain_tensor_is_itself(lib: Library) -> Any:
    means = []
    for strategy in all_kinds(lib):
        means.append(strategy.reduce("MEAN", lib.tensor(4.0), axis=None))
        with strategy.scope():
            means.append(strategy.reduce("MEAN", lib.tensor([4.0]), axis=None))
    return means


@scenario("RED-6", "GAT-3", "REP-7")
def components_of_two_types(lib: Library) -> Any:
    def call(strategy: Any, method: str) -> Any:
        parts = lib.tensor([1.0]), lib.tensor([1], "int32")
        value = per_replica(lib, strategy, list(parts))
        if method == "reduce":
            return strategy.reduce("SUM", value, axis=None)
        return strategy.gather(value, axis=0)

    return [attempt(call, central(lib), method) for method in ("reduce", "gather")]


@scenario("RED-2", "EXT-1", "EXT-2", core=(65,))
def reductions_are_named_in_any_case(lib: Library) -> Any:
    results = []
    for strategy in both(lib):
        value = strategy.run(lambda: lib.tensor(1.0 + 3.0 * replica_id(lib)))
        extended = strategy.extended
        for name in ("mean", "MEAN", "sum", "SUM", lib.distribute.ReduceOp.SUM):
            results.append(strategy.reduce(name, value, axis=None))
            results.append(extended.reduce_to(name, value, "CPU:0"))
            results += extended.batch_reduce_to(name, [(value, "CPU:0")])
    return results


@scenario("RED-9", "RED-8", "RED-12", core=(66, 67))
def one_replica_reduces_axes(lib: Library) -> Any:
    matrix = lib.tensor([[1.0, 2.0], [3.0, 4.0]])
    reduce = one_device(lib).reduce
    axes = None, 0, 1, -1, (0, 1)
    return [reduce(op, matrix, axis) for op in ("MEAN", "SUM") for axis in axes]


@scenario("RED-5")
def the_numbers_of_replicas_are_added(lib: Library) -> Any:
    results = []
    for replicas in (1, 2, 3):
        strategy = mirrored(lib, replicas)
        ids = strategy.run(lambda: lib.tensor(float(replica_id(lib))))
        results += [strategy.reduce(op, ids, axis=None) for op in ("SUM", "MEAN")]
    return results


@scenario("RED-20", core=(70,))
def a_tuple_is_reduced_leaf_by_leaf(lib: Library) -> Any:
    strategy = mirrored(lib)

    def fn(x: Any) -> Any:
        return x + 1.0, x - 1.0

    return strategy.reduce("SUM", strategy.run(fn, (lib.tensor(3.0),)), axis=None)


@scenario("RED-20")
def nests_under_central_storage(lib: Library) -> Any:
    strategy = central(lib)
    result = strategy.run(lambda: {"a": lib.tensor(3.0), "b": [lib.tensor(4.0)]})
    return strategy.reduce("SUM", result, axis=None)


@scenario("RED-8", "RED-9", "RED-7", core=(71,))
def replicas_hold_different_numbers_of_rows(lib: Library) -> Any:
    results = []
    for strategy in (mirrored(lib), mirrored(lib, 3), central(lib)):
        for dtype in ("float32", "int32"):

            def fn(dtype: str = dtype) -> Any:
                number = replica_id(lib)
                return lib.tensor([number] * (number + 1), dtype)

            rows = strategy.run(fn)
            results += [strategy.reduce(op, rows, axis=0) for op in ("SUM", "MEAN")]
    return results


@scenario("RED-8", "RED-9", core=(73,))
def replicas_hold_the_same_rows(lib: Library) -> Any:
    results = []
    for strategy in all_kinds(lib):
        rows = strategy.run(lambda: lib.tensor([1.0, 2.0]))
        results += [strategy.reduce(op, rows, axis=0) for op in ("MEAN", "SUM")]
    return results


@scenario("RED-9", core=(74,))
def the_rows_of_a_short_batch_count_alike(lib: Library) -> Any:
    batches = lib.batched(lib.dataset([5.0, 6.0, 7.0]), 4)
    strategy = mirrored(lib)
    means = []
    for batch in strategy.experimental_distribute_dataset(batches):
        rows = strategy.run(lambda x: x * 1.0, (batch,))
        means.append(strategy.reduce("MEAN", rows, axis=0))
    return means


@scenario("RED-9", "RED-8")
def uneven_and_empty_replicas(lib: Library) -> Any:
    results = []
    for strategy in both(lib):
        for parts in ([[0.0, 1.0, 2.0, 3.0], [4.0, 5.0]], [[1.0, 2.0], []]):
            value = per_replica(lib, strategy, [lib.tensor(part) for part in parts])
            results += [strategy.reduce(op, value, axis=0) for op in ("SUM", "MEAN")]
    return results


@scenario("RED-10", "RED-12")
def axes_of_matrices(lib: Library) -> Any:
    strategy = mirrored(lib)
    parts = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 9.0]]]
    value = per_replica(lib, strategy, [lib.tensor(part) for part in parts])
    axes = 0, 1, -1, -2, (0, 1), (1, 0)
    return [strategy.reduce(op, value, axis) for op in ("SUM", "MEAN") for axis in axes]


@scenario("RED-13")
def a_list_of_axes(lib: Library) -> Any:
    strategy = mirrored(lib)
    return strategy.reduce("MEAN", lib.tensor([[1.0, 2.0]]), axis=[0, 1])


@scenario("RED-11")
def an_axis_out_of_range(lib: Library) -> Any:
    calls = [(strategy.reduce, axis) for strategy in both(lib) for axis in (1, -2)]
    return [attempt(call, "MEAN", lib.tensor([1.0]), axis) for call, axis in calls]


@scenario("RED-14")
def an_axis_that_is_no_number(lib: Library) -> Any:
    return mirrored(lib).reduce("MEAN", lib.tensor([1.0]), axis="0")


@scenario("RED-2", says=("is not a valid ReduceOp",))
def a_reduction_must_be_known(lib: Library) -> Any:
    return mirrored(lib).reduce("MAX", lib.tensor(1.0), axis=None)


@scenario("RED-3")
def a_reduction_of_a_wrong_type(lib: Library) -> Any:
    reduces = [strategy.reduce for strategy in all_kinds(lib)]
    return [attempt(reduce, 3, lib.tensor(1.0), None) for reduce in reduces]


@scenario("RED-4")
def a_reduction_of_a_wrong_type_with_an_axis(lib: Library) -> Any:
    says = ("Expected `reduce_op`",)
    reduces = [strategy.reduce for strategy in all_kinds(lib)]
    return [attempt(each, 3, lib.tensor([1.0]), 0, says=says) for each in reduces]


@scenario("RED-6")
def shapes_that_differ(lib: Library) -> Any:
    strategy = mirrored(lib)
    parts = [lib.tensor([1.0, 2.0]), lib.tensor([1.0, 2.0, 3.0])]
    return strategy.reduce("SUM", per_replica(lib, strategy, parts), axis=None)


@scenario("RED-7")
def the_mean_of_integers_is_exact(lib: Library) -> Any:
    results = []
    for strategy in both(lib):
        parts = [lib.tensor([1], "int32"), lib.tensor([2], "int32")]
        value = per_replica(lib, strategy, parts)
        results += [strategy.reduce("MEAN", value, axis) for axis in (None, 0)]
    return results


@scenario("RED-16")
def the_sum_of_a_plain_value(lib: Library) -> Any:
    says = ("A non-DistributedValues value", "cannot be reduced")
    return [
        attempt(strategy.reduce, "SUM", value, None, says=says)
        for strategy in both(lib)
        for value in (lib.tensor(1.0), 3.0)
    ]


@scenario("RED-17")
def the_sum_of_a_plain_value_of_one_replica(lib: Library) -> Any:
    strategies = mirrored(lib, 1), central(lib, 1), one_device(lib)
    return [each.reduce("SUM", lib.tensor(3.0), axis=None) for each in strategies]


@scenario("RED-18")
def a_python_zero(lib: Library) -> Any:
    return mirrored(lib).reduce("MEAN", 0, axis=None)


@scenario("RED-18")
def the_sum_of_a_zero_tensor(lib: Library) -> Any:
    says = ("A non-DistributedValues value",)
    reduces = [strategy.reduce for strategy in both(lib)]
    return [attempt(each, "SUM", lib.tensor(0.0), None, says=says) for each in reduces]


@scenario("RED-19")
def a_plain_tensor_with_an_axis(lib: Library) -> Any:
    value = lib.tensor([1.0, 2.0])
    reduces = [strategy.reduce for strategy in both(lib)]
    return [each(op, value, axis=0) for each in reduces for op in ("SUM", "MEAN")]


@scenario("RED-21")
def a_mirrored_value(lib: Library) -> Any:
    results = []
    for strategy in both(lib):
        value = lib.distribute.Mirrored((lib.tensor(3.0), lib.tensor(3.0)))
        results += [attempt(strategy.reduce, op, value, None) for op in ("MEAN", "SUM")]
    return results


@scenario("RED-21")
def a_mirrored_variable(lib: Library) -> Any:
    strategy = mirrored(lib)
    with strategy.scope():
        variable = lib.distribute.Variable(3.0)
    return [attempt(strategy.reduce, op, variable, None) for op in ("MEAN", "SUM")]


@scenario("RED-22")
def a_variable_of_local_values(lib: Library) -> Any:
    strategy, names = mirrored(lib), lib.distribute
    with strategy.scope():
        variable = names.Variable(
            2.0,
            synchronization=names.VariableSynchronization.ON_READ,
            aggregation=names.VariableAggregation.SUM,
        )
    strategy.run(lambda: variable.assign_add(float(replica_id(lib))))
    return [strategy.reduce(op, variable, axis=None) for op in ("SUM", "MEAN")]


@scenario("RED-23")
def rows_stay_sparse(lib: Library) -> Any:
    strategy = mirrored(lib)
    parts = [lib.slices([[2.0], [4.0]], [0, number], 3) for number in (1, 2)]
    value = per_replica(lib, strategy, parts)
    return [strategy.reduce(op, value, axis=None) for op in ("SUM", "MEAN")]


@scenario("RED-24")
def one_replica_gets_back_what_it_has(lib: Library) -> Any:
    strategies = one_device(lib), lib.distribute.get_strategy()
    values = {"a": [1, lib.tensor(2.0)]}, "text", 0
    return [
        each.reduce(op, value, axis=None)
        for each in strategies
        for op in ("SUM", "MEAN")
        for value in values
    ]


@scenario("RED-25")
def in_a_replica(lib: Library) -> Any:
    strategies = all_kinds(lib)[:3]
    return [
        attempt(each.run, lambda each=each: each.reduce("MEAN", lib.tensor(1.0), None))
        for each in strategies
    ]
