"""Writing elements of variables by their coordinates, and rows of batches."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario
from tests.differential.strategies import central, mirrored, one_device
from tests.differential.variables import variable

SCATTERS = "add", "sub", "mul", "div", "min", "max", "update"
VALUE = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


def single(lib: Library) -> list[Any]:
    """Return strategies with one copy of a variable."""
    return [lib.distribute.get_strategy(), one_device(lib), central(lib)]


def batches(lib: Library) -> Any:
    """Return a row for each batch."""
    return lib.slices([[9.0], [8.0], [7.0]], [[0], [1], [0]], 3)


@scenario("VSC-7")
def writes_of_rows_take_a_lock_and_a_name(lib: Library) -> Any:
    answers = []
    for strategy in [*single(lib), mirrored(lib)]:
        for each in SCATTERS:
            made = variable(lib, strategy, [4.0, 1.0], "ONLY_FIRST_REPLICA")
            rows = lib.slices([2.0], [0], 2)
            written = getattr(made, f"scatter_{each}")
            written(rows, True, "a name")
            written(rows, use_locking=False, name="another")
            answers.append(made)
    return answers


@scenario("VSC-7")
def shards_take_a_lock_and_a_name(lib: Library) -> Any:
    shards = [lib.distribute.Variable([[n, n]]) for n in (1.0, 2.0)]
    table = lib.distribute.ShardedVariable(shards)
    rows = lib.slices([[3.0, 4.0]], [1], 2)
    table.scatter_add(rows, use_locking=True, name="a name")
    table.batch_scatter_update(rows, True, "another")
    return lib.whole(table)


@scenario("VSC-7")
def indices_of_rows_may_have_more_dimensions(lib: Library) -> Any:
    answers = []
    for strategy in [*single(lib), mirrored(lib)]:
        made = variable(lib, strategy, [4.0, 1.0, 0.0], "SUM")
        answers.append(made.scatter_add(lib.slices([[2.0, 3.0], [4.0, 5.0]], [[0, 1], [2, 0]], 3)))
    return answers


@scenario("VSC-8")
def elements_of_one_copy_are_written(lib: Library) -> Any:
    answers = []
    for strategy in single(lib):
        for each in ("add", "sub", "update", "min", "max"):
            made = variable(lib, strategy, VALUE, "SUM")
            written = getattr(made, f"scatter_nd_{each}")
            answers += [written([[0, 1], [2, 0]], [7.0, -8.0]), made]
            written([[1]], [[9.0, 3.0]], name="rows")
            written([[[0, 0]], [[1, 1]]], [[0.5], [0.25]])
            answers.append(made)
    return answers


@scenario("VSC-8")
def elements_that_come_again_add_up(lib: Library) -> Any:
    made = [variable(lib, strategy, VALUE, "SUM") for strategy in single(lib)]
    return [each.scatter_nd_add([[0, 1], [0, 1], [2, 1]], [1.0, 2.0, 3.0]) for each in made]


@scenario("VSC-8")
def parts_of_a_value_of_three_dimensions(lib: Library) -> Any:
    start = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]
    made = variable(lib, one_device(lib), start)
    made.scatter_nd_add([[0, 1], [1, 0]], [[10.0, 20.0], [30.0, 40.0]])
    made.scatter_nd_update([[1, 1], [0, 0]], [[-1.0, -2.0], [-3.0, -4.0]])
    made.scatter_nd_sub([[0]], [[[1.0, 1.0], [1.0, 1.0]]])
    return made


@scenario("VSC-8")
def rows_of_batches_are_replaced(lib: Library) -> Any:
    answers = []
    for strategy in single(lib):
        made = variable(lib, strategy, VALUE)
        answers.append(made.batch_scatter_update(batches(lib)))
        rows = lib.slices([[1.0, 1.0]], [1], 3)
        answers.append(made.batch_scatter_update(rows, True, "a name"))
    return answers


@scenario("VSC-8")
def a_replica_writes_elements_of_one_copy(lib: Library) -> Any:
    answers = []
    for strategy in [lib.distribute.get_strategy(), one_device(lib)]:
        made = variable(lib, strategy, VALUE)

        def fn(made: Any = made) -> None:
            made.scatter_nd_add([[0, 1]], [7.0])
            made.scatter_nd_update([[2, 0]], [8.0])
            made.batch_scatter_update(batches(lib))

        strategy.run(fn)
        answers.append(made)
    return answers


@scenario("VSC-8")
def replicas_add_to_elements_of_one_copy(lib: Library) -> Any:
    strategy = central(lib)
    made = variable(lib, strategy, VALUE, "SUM")

    def fn() -> None:
        made.scatter_nd_add([[0, 1]], [7.0])
        made.scatter_nd_sub([[1]], [[1.0, 2.0]])

    strategy.run(fn)
    return made


@scenario("VSC-8")
def elements_of_copies_are_not_written(lib: Library) -> Any:
    answers = []
    for synchronization in ("AUTO", "ON_READ"):
        strategy = mirrored(lib)
        made = variable(lib, strategy, VALUE, "SUM", synchronization)
        calls: list[Any] = [
            lambda made=made: made.scatter_nd_add([[0, 1]], [7.0]),
            lambda made=made: made.scatter_nd_sub([[0, 1]], [7.0]),
            lambda made=made: made.scatter_nd_update([[0, 1]], [7.0]),
            lambda made=made: made.batch_scatter_update(batches(lib)),
        ]
        answers += [attempt(call) for call in calls]
        answers += [attempt(strategy.run, call) for call in calls]
        answers.append(made)
    return answers


@scenario("VSC-8")
def elements_on_servers_are_written(lib: Library) -> Any:
    with lib.served(1) as strategy:
        made = variable(lib, strategy, VALUE)
        made.scatter_add(lib.slices([[1.0, 1.0]], [0], 3), use_locking=True, name="a name")
        made.scatter_nd_add([[0, 1], [2, 0]], [7.0, 8.0])
        made.scatter_nd_sub([[1, 0]], [1.0])
        made.scatter_nd_update([[2, 1], [1, 1]], [-1.0, -2.0])
        made.batch_scatter_update(batches(lib))
        return made.numpy().tolist()


@scenario("VSC-8")
def elements_that_there_are_not(lib: Library) -> Any:
    made = variable(lib, one_device(lib), VALUE)
    return [
        attempt(made.scatter_nd_add, [[3, 0]], [1.0]),
        attempt(made.scatter_nd_update, [[0, 2]], [1.0]),
        attempt(made.scatter_nd_add, [[0, 0, 0]], [1.0]),
        attempt(made.scatter_nd_add, [[0, 0]], [1.0, 2.0]),
        attempt(made.scatter_nd_sub, [[0]], [1.0]),
        made,
    ]
