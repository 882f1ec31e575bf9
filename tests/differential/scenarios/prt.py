"""Variables that a strategy divides among servers."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario


def fixed(lib: Library, shards: int) -> Any:
    """Return a partitioner with a number of shards."""
    return lib.distribute.partitioners.FixedShardsPartitioner(shards)


def description(lib: Library, table: Any) -> Any:
    """Return the values of the shards, and where they live."""
    return [
        [[shard.numpy().tolist(), lib.device_of(shard)] for shard in table.variables],
        isinstance(table, lib.distribute.ShardedVariable),
    ]


def created(lib: Library, partitioner: Any, value: Any, **options: Any) -> Any:
    """Return a variable divided among two servers."""
    with lib.served(2, partitioner) as strategy, strategy.scope():
        return description(lib, lib.distribute.Variable(value, **options))


@scenario("PRT-6", "PRT-8", "PSV-1", core=(212,))
def shards_of_tables(lib: Library) -> Any:
    with lib.served(3, fixed(lib, 2)) as strategy, strategy.scope():
        tables = [
            lib.distribute.Variable(lib.tensor([[float(i)] * columns] * rows))
            for i, (rows, columns) in enumerate([(5, 2), (6, 1)])
        ]
        return [description(lib, table) for table in tables]


@scenario("PRT-6", "PRT-12", core=(213,))
def shards_of_a_value(lib: Library) -> Any:
    return created(lib, fixed(lib, 4), [float(number) for number in range(10)])


@scenario("PRT-5", core=(214,))
def more_shards_than_rows(lib: Library) -> Any:
    return created(lib, fixed(lib, 9), lib.tensor([1.0, 2.0, 3.0]))


@scenario("PRT-3", "PRT-4", core=(215,))
def one_shard(lib: Library) -> Any:
    with lib.served(2, fixed(lib, 1)) as strategy, strategy.scope():
        made = [lib.distribute.Variable(value) for value in (1.0, [1.0, 2.0])]
        return [[isinstance(each, lib.distribute.Variable), lib.device_of(each)] for each in made]


@scenario("PRT-1")
def what_a_partitioner_is_asked(lib: Library) -> Any:
    asked = []

    def partitioner(shape: Any, dtype: Any, **options: Any) -> list[int]:
        asked.append([list(shape), dtype, options])
        return [2] + [1] * (len(shape) - 1)

    created(lib, partitioner, lib.tensor([[1.0, 2.0], [3.0, 4.0]]))
    return asked


@scenario("PRT-2", core=(219,))
def answers_of_partitioners(lib: Library) -> Any:
    answers: list[Any] = [None, [], [0, 1, 1], [2, 2, 1]]
    rest = iter(answers)

    def partitioner(**asked: Any) -> Any:
        return next(rest)

    value = lib.tensor([[[1.0]], [[2.0]]])
    says = ("variable_partitioner must return",)
    with lib.served(2, partitioner) as strategy, strategy.scope():
        return [attempt(lib.distribute.Variable, value, says=says) for _ in answers]


@scenario("PRT-10", core=(217,))
def a_function_makes_shards(lib: Library) -> Any:
    def with_info(shard_info: Any) -> Any:
        return rows_of(int(shard_info.shape[0]), shard_info.offset[0])

    def with_partition(partition_shape: Any, partition_offset: Any) -> Any:
        return rows_of(int(partition_shape[0]), partition_offset[0])

    def rows_of(count: int, number: Any) -> Any:
        return lib.tensor([[float(number)] * 2] * count)

    def whole() -> Any:
        return lib.tensor([[float(row)] * 2 for row in range(5)])

    makes = (with_info, with_partition, whole)
    options = {"shape": (5, 2), "dtype": lib.dtype("float32")}
    with lib.served(2, fixed(lib, 2)) as strategy, strategy.scope():
        made = [lib.distribute.Variable(make, **options) for make in makes]
        return [description(lib, each) for each in made]


@scenario("PRT-11")
def a_function_without_a_shape_makes_the_whole(lib: Library) -> Any:
    return created(lib, fixed(lib, 2), lambda: lib.tensor([1.0, 2.0, 3.0]))


@scenario("PRT-9")
def no_initial_value(lib: Library) -> Any:
    return created(lib, fixed(lib, 2), None, shape=(4,), dtype=lib.dtype("float32"))
