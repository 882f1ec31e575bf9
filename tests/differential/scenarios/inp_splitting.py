"""How batches are split and rounds end."""

from __future__ import annotations

from itertools import islice
from typing import Any

from tests.differential.answer import attempt
from tests.differential.inputs import dealt, split, steps
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, mirrored, one_device

ROWS = (10, 4), (9, 4), (7, 3), (5, 1), (8, 8), (1, 4)


@scenario("INP-1", "INP-11", core=(162,))
def ten_batches_are_halved(lib: Library) -> Any:
    return split(mirrored(lib), lib.range(100).batch(10))


@scenario("INP-11", "INP-12", "INP-13")
def each_batch_is_cut_on_its_own(lib: Library) -> Any:
    return [
        split(mirrored(lib, replicas), lib.range(count).batch(size))
        for replicas in (2, 3, 4)
        for count, size in ROWS
    ]


@scenario("INP-11", "INP-12")
def batches_are_cut_alike_for_one_copy_of_variables(lib: Library) -> Any:
    return [
        split(central(lib, replicas), lib.range(count).batch(size))
        for replicas in (2, 3)
        for count, size in ROWS
    ]


@scenario("INP-11")
def sharing_by_rows_is_the_default(lib: Library) -> Any:
    strategy = mirrored(lib, 3)
    return [
        steps(strategy, lib.sharded(strategy, lib.range(10).batch(4), policy))
        for policy in ("AUTO", "DATA")
    ]


@scenario("INP-14")
def one_worker_that_shares_nothing(lib: Library) -> Any:
    strategy = mirrored(lib)
    sizes = (9, 4), (7, 3), (8, 4)
    return [
        steps(strategy, lib.sharded(strategy, lib.range(count).batch(size), "OFF"))
        for count, size in sizes
    ]


@scenario("INP-14")
def pieces_without_sharing_flow_over_batches(lib: Library) -> Any:
    strategy = mirrored(lib, 3)
    return steps(strategy, lib.sharded(strategy, lib.range(10).batch(4), "OFF"))


@scenario("INP-14", "INP-19")
def one_worker_under_hint(lib: Library) -> Any:
    strategy = mirrored(lib)
    return steps(strategy, lib.sharded(strategy, lib.range(8).batch(4), "HINT"))


@scenario("INP-20", core=(176,))
def a_short_batch_may_be_dropped(lib: Library) -> Any:
    strategy = mirrored(lib)
    five_and_six = lib.dataset([5, 6])
    return [
        split(strategy, five_and_six.batch(2, drop_remainder=True)),
        split(strategy, five_and_six.batch(1, drop_remainder=True)),
        split(strategy, five_and_six.batch(2)),
        split(strategy, lib.range(7).batch(3, drop_remainder=True)),
    ]


@scenario("INP-10", "OD-3")
def one_replica_takes_elements_as_they_are(lib: Library) -> Any:
    datasets = lib.range(3).batch(2), lib.range(2)
    return [
        list(strategy.experimental_distribute_dataset(dataset))
        for strategy in (one_device(lib), mirrored(lib, 1))
        for dataset in datasets
    ]


@scenario("INP-22")
def single_elements_cannot_be_split(lib: Library) -> Any:
    return [attempt(split, strategy, lib.range(4)) for strategy in (mirrored(lib), central(lib))]


@scenario("INP-24")
def every_leaf_is_split(lib: Library) -> Any:
    elements = [{"x": lib.tensor([k, -k]), "y": {"z": float(k)}} for k in (1.0, 2.0, 3.0)]
    strategy = mirrored(lib)
    return list(strategy.experimental_distribute_dataset(lib.dataset(elements).batch(3)))


@scenario("INP-26")
def what_is_no_dataset_is_refused(lib: Library) -> Any:
    strategy = mirrored(lib)
    return [
        attempt(split, strategy, 5),
        attempt(dealt, strategy, 5),
        attempt(dealt, strategy, None),
    ]


@scenario("INP-27", core=(177,))
def a_replica_without_rows_takes_part(lib: Library) -> Any:
    strategy = mirrored(lib)

    def fn(x: Any) -> Any:
        return x * 2, lib.total(x), 3

    (value,) = strategy.experimental_distribute_dataset(lib.dataset([5.0]).batch(2))
    return strategy.run(fn, (value,))


@scenario("INP-28", core=(161,))
def a_last_round_is_padded(lib: Library) -> Any:
    strategy = mirrored(lib)
    return [
        dealt(strategy, lib.range(9).batch(2)),
        dealt(strategy, lib.range(5).batch(2)),
        dealt(strategy, lib.range(9).batch(2, drop_remainder=True)),
    ]


@scenario("INP-28", "INP-27")
def padding_has_the_form_of_the_data(lib: Library) -> Any:
    dataset = lib.dataset([{"x": lib.tensor([1.0, 2.0]), "y": 3}]).batch(1)
    strategy = mirrored(lib, 3)
    return list(strategy.distribute_datasets_from_function(lambda _: dataset))


@scenario("INP-29")
def a_round_of_fixed_shapes_is_not_padded(lib: Library) -> Any:
    return dealt(mirrored(lib), lib.range(10).batch(2, drop_remainder=True))


@scenario("INP-29")
def a_round_of_numbers_is_not_padded(lib: Library) -> Any:
    return dealt(mirrored(lib), lib.range(3))


@scenario("INP-29")
def a_round_is_not_padded_for_one_copy_of_variables(lib: Library) -> Any:
    return dealt(central(lib), lib.range(5).batch(2))


@scenario("INP-30c")
def an_endless_dataset_has_whole_rounds(lib: Library) -> Any:
    dataset = lib.range(3).batch(2).repeat()
    answers = []
    for strategy in (mirrored(lib), central(lib)):
        distributed = strategy.distribute_datasets_from_function(lambda _: dataset)
        answers.append(steps(strategy, islice(distributed, 4)))
    return answers
