"""Sharded variables."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario

ROWS = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0], [8.0, 9.0]]


def sharded(lib: Library, *sizes: int, **options: Any) -> Any:
    """Return the five rows in shards of some sizes."""
    variables, first = [], 0
    for size in sizes or (2, 2, 1):
        rows = lib.tensor(ROWS[first : first + size])
        variables.append(lib.distribute.Variable(rows))
        first += size
    return lib.distribute.ShardedVariable(variables, **options)


@scenario("SHV-2", "SHV-3", "SHV-4", core=(225,))
def what_it_is(lib: Library) -> Any:
    table = sharded(lib, name="users")
    shards = list(table)
    same = all(one is two for one, two in zip(shards, table.variables, strict=True))
    return [
        table,
        len(table.variables),
        same,
        list(table.shape),
        table.dtype,
        table.name,
        sharded(lib).name,
        attempt(len, table),
    ]


@scenario("SHV-5", core=(233,))
def it_is_no_variable(lib: Library) -> Any:
    table = sharded(lib)
    names = ("trainable", "handle", "device", "synchronization")
    return [
        isinstance(table, lib.distribute.Variable),
        [hasattr(table, name) for name in names],
        [shard.trainable for shard in table.variables],
    ]


@scenario("SHV-15", core=(233,))
def a_compiled_function_takes_it(lib: Library) -> Any:
    table = sharded(lib)

    def doubled(rows: Any) -> Any:
        return rows + lib.whole(table)

    return lib.compiled(doubled)(lib.tensor(ROWS))


@scenario("SHV-6", core=(226,))
def whole_values_are_written(lib: Library) -> Any:
    found = []
    for method in ("assign", "assign_add", "assign_sub"):
        table = sharded(lib)
        written = getattr(table, method)(lib.tensor(ROWS[::-1]))
        found.append([table, written is table])
    return found


@scenario("SHV-6")
def a_value_with_too_few_rows(lib: Library) -> Any:
    return sharded(lib).assign(lib.tensor(ROWS[:4]))


METHODS = ("add", "sub", "mul", "div", "min", "max", "update")


@scenario("SHV-10", core=(227,))
def rows_are_written(lib: Library) -> Any:
    found = []
    for method in METHODS:
        table = sharded(lib)
        rows = lib.slices([[2.0, 4.0], [3.0, 3.0], [5.0, 5.0]], [4, 0, 2], 5)
        written = getattr(table, f"scatter_{method}")(rows)
        found.append([table, written is table])
    return found


@scenario("SHV-10", core=(227,))
def rows_of_even_shards_are_written(lib: Library) -> Any:
    table = lib.distribute.ShardedVariable(
        [lib.distribute.Variable(lib.tensor(ROWS[:2])) for _ in range(2)]
    )
    table.scatter_add(lib.slices([[1.0, 1.0]] * 3, [3, 0, 3], 4))
    table.batch_scatter_update(lib.slices([[7.0, 7.0]], [1], 4))
    return table


@scenario("SHV-10", says=('does not conform to "div"',))
def rows_of_an_uneven_layout(lib: Library) -> Any:
    return sharded(lib, 1, 4).scatter_add(lib.slices([[1.0, 1.0]], [0], 5))


@scenario("SHV-10")
def rows_that_do_not_exist(lib: Library) -> Any:
    table = sharded(lib)
    return [attempt(table.scatter_add, lib.slices([[1.0, 1.0]], [row], 5)) for row in (-1, 5)]


@scenario("SHV-11", core=(228,))
def rows_are_read_in_order(lib: Library) -> Any:
    return sharded(lib).sparse_read(lib.tensor([0, 1, 3, 4], "int64"))


@scenario("SHV-11", "ODD-16")
def rows_are_read_in_another_order(lib: Library) -> Any:
    return sharded(lib).sparse_read(lib.tensor([4, 0, 3, 0], "int64"))


@scenario("SHV-12", core=(234,))
def rows_are_looked_up(lib: Library) -> Any:
    table = sharded(lib)
    return [lib.looked_up(table, [0, 3, 4]), lib.looked_up(table, [[4, 0], [3, 3]])]


@scenario("SHV-12")
def looking_up_rows_that_do_not_exist(lib: Library) -> Any:
    return lib.looked_up(sharded(lib), [9])


@scenario("SHV-13", core=(229,))
def it_is_used_as_a_tensor(lib: Library) -> Any:
    table = sharded(lib)
    return [
        lib.whole(table),
        table.numpy().tolist(),
        table + 1.0,
        1.0 - table,
        table * table,
        -table,
        table == table,
        table > 3.0,
        table / 2.0,
        table**2.0,
        lib.matmul(table, lib.tensor([[1.0], [2.0]])),
    ]


def indices(lib: Library) -> list[Any]:
    """Return what a sharded variable is indexed by."""
    full = slice(None)
    return [
        0,
        -1,
        3,
        full,
        slice(1, 4),
        slice(-3, None),
        slice(0, 5, 2),
        slice(1, 5, 3),
        slice(None, None, -1),
        slice(None, None, -2),
        slice(4, 1, -1),
        slice(3, None, -3),
        slice(10, 20),
        slice(3, 1),
        (2, 1),
        (-1, -2),
        (full, 1),
        (full, -1),
        (slice(1, 4), slice(None, None, -1)),
        (slice(None, None, -2), slice(None, None, -1)),
        (slice(4, 1, -1), 1),
        ...,
        (..., 0),
        (..., slice(0, 1)),
        (2, ...),
        (slice(1, 4), ..., None),
        None,
        (full, None),
        (full, None, 1),
        (None, full, None),
        lib.tensor([True, False, True, False, True], "bool"),
        lib.tensor([False] * 5, "bool"),
    ]


@scenario("SHV-7", core=(230,))
def indices_of_rows_and_columns(lib: Library) -> Any:
    return [
        sharded(lib, *sizes)[index] for sizes in [(2, 2, 1), (5,), (1, 4)] for index in indices(lib)
    ]


@scenario("SHV-7", core=(230,))
def a_mask_of_elements(lib: Library) -> Any:
    table = sharded(lib)
    return table[table > 3.0]


@scenario("SHV-7")
def a_dimension_before_a_row(lib: Library) -> Any:
    return sharded(lib)[None, 0]


@scenario("SHV-8", "SHV-9", core=(230,))
def what_is_no_index(lib: Library) -> Any:
    table = sharded(lib)
    wrong = [5, -6, (5, 0), lib.tensor(1, "int64"), [0, 1], 1.0, "a"]
    wrong += [lib.tensor([1, 2], "int64"), slice(None, None, 0)]
    return [attempt(table.__getitem__, index) for index in wrong]


@scenario("SHV-1", core=(231,))
def what_shards_cannot_be(lib: Library) -> Any:
    make, variable = lib.distribute.ShardedVariable, lib.distribute.Variable
    one = variable([1.0])
    return [
        attempt(make, variables, says=("non-empty list", "same dtype", "must have"))
        for variables in (
            [],
            None,
            one,
            [1.0],
            [lib.tensor([1.0])],
            [one, variable([1])],
            [one, variable([[1.0]])],
        )
    ]
