"""Tables in the store: rows that are written, rows that are not, and their limits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem_proto.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    VariableNotFoundError,
)
from stratagem_proto.key_index import KeyIndex, PositionArray
from stratagem_proto.programs.random_rows import InitialValues
from stratagem_proto.v1.variable_pb2 import (
    VARIABLE_KIND_SLOT,
    Initializer,
    TableSpec,
    VariableSpec,
)
from stratagem_proto.wire.tensors import DTYPES
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.tables.table import Table
from stratagem_psserver.variables.store import Variable
from tests.full import examples
from tests.psserver.tables.specs import (
    NORMAL,
    ZEROS,
    dynamic,
    hosting,
    parts,
    table_of,
    table_spec,
)

KEYS = st.integers(-12, 12) | st.sampled_from([-(1 << 63), (1 << 63) - 1])


def put(variable: Variable, keys: list[int], values: torch.Tensor) -> None:
    """Writes distinct rows as a request does."""
    table, rows = table_of(variable), torch.tensor(keys, dtype=torch.int64)
    table.check_fit(len(rows))
    table.make_room(table.find(rows), VariableMemoryLimit())
    variable.put_rows(rows, values)


def read(variable: Variable, *keys: int) -> torch.Tensor:
    return variable.rows(torch.tensor(keys, dtype=torch.int64))


def hosted(spec: VariableSpec) -> Variable:
    return hosting(spec)[0].get(spec.name)


def test_rows_that_nobody_wrote_have_their_initial_value_and_are_not_stored() -> None:
    spec = table_spec("users", (1_000_000_000, 16))
    users = hosted(spec)
    rows = torch.tensor([0, 999_999_999, 5, 5])
    assert torch.equal(users.rows(rows), InitialValues(spec).rows(rows))
    assert len(table_of(users)) == 0
    assert table_of(users).nbytes < 10_000


@settings(max_examples=examples(50))
@given(st.lists(st.lists(st.integers(0, 30), unique=True), max_size=8))
def test_a_table_reads_as_the_variable_would(writes: list[list[int]]) -> None:
    spec = table_spec("users", (31, 3))
    users, whole = hosted(spec), InitialValues(spec).whole()
    for number, keys in enumerate(writes):
        values = torch.full((len(keys), 3), float(number))
        put(users, keys, values)
        whole[keys] = values
        assert torch.equal(read(users, *range(31)), whole)
    written = {key for keys in writes for key in keys}
    assert set(table_of(users).stored()[0].tolist()) == written


@settings(max_examples=examples(50))
@given(st.lists(st.lists(KEYS, unique=True), max_size=8))
def test_a_dynamic_table_has_a_row_for_each_key_that_was_written(
    writes: list[list[int]],
) -> None:
    spec = table_spec("users", (0, 2))
    users, expected = hosted(spec), dict[int, float]()
    for number, keys in enumerate(writes):
        put(users, keys, torch.full((len(keys), 2), float(number)))
        expected.update(dict.fromkeys(keys, float(number)))
    assert read(users, *expected)[:, 1].tolist() == list(expected.values())
    assert len(table_of(users)) == len(expected)


@settings(max_examples=examples(50))
@given(
    st.lists(st.lists(KEYS, unique=True, max_size=5), max_size=20),
    st.integers(5, 9),
)
def test_the_rows_touched_least_recently_make_room(writes: list[list[int]], most: int) -> None:
    spec = table_spec("users", (0, 2), ZEROS, dynamic(max_rows=most))
    users, touched = hosted(spec), dict[int, int]()
    for number, keys in enumerate(writes, start=1):
        put(users, keys, torch.full((len(keys), 2), float(number)))
        kept = table_of(users).stored()[0].tolist()
        assert set(keys) <= set(kept) <= {*touched, *keys}
        assert len(kept) <= most
        gone = [touched[key] for key in touched.keys() - {*kept}]
        assert not gone or len(kept) == most
        left = [touched[key] for key in kept if key not in keys]
        assert max(gone, default=0) <= min(left, default=number)
        touched = {key: touched.get(key, 0) for key in kept} | dict.fromkeys(keys, number)
        assert read(users, *kept)[:, 0].tolist() == [touched[key] for key in kept]
        assert not read(users, 77).any()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_rows_keep_their_bits_when_others_make_room(dtype: torch.dtype) -> None:
    spec = table_spec("users", (0, 2), ZEROS, dynamic(max_rows=3), dtype)
    users, values = hosted(spec), torch.tensor([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]).to(dtype)
    put(users, [1, 2, 3], values)
    put(users, [2, 3], values[1:])
    put(users, [4], values[:1])  # to where 1 was
    assert sorted(table_of(users).stored()[0].tolist()) == [2, 3, 4]
    assert read(users, 2, 3, 4).to(torch.complex64).tolist() == [[1, 1], [1, 0], [0, 1]]


@pytest.mark.parametrize("age", [1, 3, 7, 16])
def test_rows_untouched_for_so_many_writes_go(age: int) -> None:
    spec = table_spec("users", (0, 2), ZEROS, dynamic(evict_after_writes=age))
    users = hosted(spec)
    put(users, [1, 2], torch.ones(2, 2))
    stored = []
    for _ in range(age + age // 8 + 1):
        put(users, [2], torch.ones(1, 2))
        stored.append(1 in table_of(users).stored()[0])
    latest = age + age // 8
    assert all(stored[: age - 1])
    assert not any(stored[latest - 1 :])
    assert not read(users, 1).any()
    assert read(users, 2).all()
    assert table_of(users).statistics().evicted_rows == 1


@settings(max_examples=examples(40))
@given(
    st.integers(4_000, 20_000),
    st.lists(st.lists(st.integers(0, 500), unique=True, max_size=8), max_size=30),
    st.integers(1, 3),
    st.integers(0, 30),
)
def test_the_budget_of_bytes_is_never_passed(
    most: int, writes: list[list[int]], admission: int, with_slot_from: int
) -> None:
    limits = dynamic(max_bytes=most, admission_count=admission)
    spec = table_spec("users", (0, 3), ZEROS, limits)
    store, _ = hosting(spec)
    users = store.get("users")
    for number, keys in enumerate(writes):
        if number == with_slot_from:
            store.create([slot_spec("users/m", (0, 3))], [torch.empty(0, 3)])
        rows = torch.tensor(keys, dtype=torch.int64)
        table_of(users).drop(rows[table_of(users).find(rows).positions < 0])
        room = table_of(users).most_rows()
        put(users, keys[:room], torch.ones(len(keys[:room]), 3))
        assert table_of(users).nbytes <= most
        assert read(users, *keys[:room]).all()
        assert counted_by_hand(store.get("users")) <= most


def counted_by_hand(variable: Variable) -> int:
    """Bytes of all tensors that a table holds."""
    table = table_of(variable)
    tensors = [arena.storage for arena in table.arenas]
    assert isinstance(table._index, KeyIndex)
    tensors += [table._keys, table._touched, table._index._marks]
    tensors.append(table._index._positions)
    if table.admission.needed > 1:
        tensors.append(table.admission._counts)
        index = table.admission._index
        tensors += [table.admission._keys, index._marks, index._positions]
    return sum(tensor.nbytes for tensor in tensors)


def test_a_budget_is_used_and_not_only_kept() -> None:
    spec = table_spec("users", (0, 16), ZEROS, dynamic(max_bytes=1_000_000))
    users = hosted(spec)
    for start in range(0, 20_000, 1000):
        keys = list(range(start, start + 1000))
        put(users, keys, torch.ones(1000, 16))
    assert len(table_of(users)) > 0.9 * table_of(users).most_rows()
    assert 750_000 < table_of(users).nbytes <= 1_000_000


def slot_spec(name: str, shape: tuple[int, ...], initializer: Initializer = ZEROS) -> VariableSpec:
    spec = table_spec(name, shape, initializer, TableSpec())
    spec.kind, spec.slot_of = VARIABLE_KIND_SLOT, name.split("/")[0]
    return spec


def test_a_slot_of_a_table_has_the_same_rows() -> None:
    store, _ = hosting(table_spec("users", (100, 2)))
    put(store.get("users"), [3, 7], torch.zeros(2, 2))
    half = Initializer(constant=0.5)
    store.create([slot_spec("users/m", (100, 2), half)], [torch.empty(0, 2)])
    slot = store.get("users/m")
    assert read(slot, 3, 4).tolist() == [[0.5, 0.5]] * 2
    put(slot, [4], torch.ones(1, 2))
    assert read(slot, 3, 4, 5)[:, 0].tolist() == [0.5, 1.0, 0.5]
    assert sorted(table_of(slot).stored()[0].tolist()) == [3, 4, 7]
    described = InitialValues(table_spec("users", (100, 2))).rows(torch.tensor([4]))
    assert torch.equal(read(store.get("users"), 4), described)


def test_a_slot_of_a_table_that_is_deleted_takes_no_more_memory() -> None:
    store, _ = hosting(table_spec("users", (100, 2)))
    before = table_of(store.get("users")).nbytes
    store.create([slot_spec("users/m", (100, 2))], [torch.empty(0, 2)])
    assert table_of(store.get("users")).nbytes > before
    store.delete(["users/m"])
    assert table_of(store.get("users")).nbytes == before
    store.delete(["users"])
    with pytest.raises(VariableNotFoundError):
        store.get("users")


def test_statistics_say_what_is_stored() -> None:
    users = hosted(table_spec("users", (0, 4), NORMAL, dynamic(admission_count=2)))
    put(users, [1, 2, 3], torch.zeros(3, 4))
    table_of(users).drop(torch.tensor([8, 9]))
    statistics = users.info().table
    assert (statistics.rows, statistics.waiting_keys) == (3, 2)
    assert statistics.dropped_gradients == 2
    assert statistics.bytes == counted_by_hand(users)


def test_there_is_an_error_and_no_variable_if_the_machine_lacks_memory() -> None:
    larger_than_any_machine = table_spec("b", (10, 1 << 50), ZEROS)
    store, _ = hosting()
    specs = [table_spec("a", (10, 2), ZEROS), larger_than_any_machine]
    values = [torch.empty(0, 2), torch.empty(0, 1 << 50)]
    with pytest.raises(ResourceExhaustedError, match="'b' needs memory for 64 rows"):
        store.create(specs, values)
    assert store.listing() == []


def without_initializer() -> VariableSpec:
    spec = table_spec("users", (3, 2))
    spec.ClearField("initializer")
    return spec


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (without_initializer(), "need an initializer"),
        (table_spec("users", (3, 2), table=dynamic()), "begins with 0, not 3"),
        (table_spec("users", (0, 2), table=dynamic(eviction_order=99)), "order of eviction, 99"),
        (
            table_spec("users", (0, 16), table=dynamic(max_bytes=100)),
            "must store 1 rows at once, and its max_rows and max_bytes leave room f",
        ),
        (slot_spec("dense/m", (2, 3)), "its owner 'dense' is not a table"),
        (slot_spec("table/m", (2, 3)), "its owner 'table' has other rows"),
    ],
)
def test_a_table_that_cannot_be_is_refused(spec: VariableSpec, says: str) -> None:
    store, _ = hosting(table_spec("table", (5, 3)))
    dense = table_spec("dense", (2, 3))
    dense.ClearField("table")
    store.create([dense], [torch.zeros(2, 3)])
    shape = (0, *spec.tensor.shape[1:])
    with pytest.raises(InvalidArgumentError, match=says):
        store.create([spec], [torch.empty(shape)])
    assert [info.spec.name for info in store.listing()] == ["table", "dense"]


def test_more_rows_at_once_than_the_table_may_have_are_refused() -> None:
    table = Table(table_spec("users", (0, 2), ZEROS, dynamic(max_rows=3)))
    table.check_fit(3)
    with pytest.raises(InvalidArgumentError, match="must store 4 rows at once"):
        table.check_fit(4)


def test_parts_of_a_table_have_the_rows_of_the_whole() -> None:
    spec = table_spec("users", (10, 3))
    store, _ = hosting(*parts(spec, 3))
    sizes = [4, 3, 3]
    read_parts = [
        store.get(f"users/part_{index}").rows(torch.arange(size))
        for index, size in enumerate(sizes)
    ]
    assert torch.equal(torch.cat(read_parts), InitialValues(spec).whole())


def stored(variable: Variable, keys: torch.Tensor, limit: VariableMemoryLimit) -> None:
    """Writes rows with their first number."""
    table = table_of(variable)
    found = table.find(keys)
    table.make_room(found, limit)
    table.store(found, {table.value: keys.float().unsqueeze(1).expand(-1, 4).contiguous()})


def test_a_fixed_vocabulary_is_found_by_an_array_that_is_no_larger_than_its_rows() -> None:
    vocabulary, limit = 20_000, VariableMemoryLimit()
    users = hosted(table_spec("users", (vocabulary, 4), NORMAL))
    kinds = list[tuple[int, bool]]()
    for stop in range(0, vocabulary, 500):
        stored(users, torch.arange(stop, stop + 500), limit)
        table = table_of(users)
        kinds.append((table.capacity * (16 + 8), isinstance(table._index, PositionArray)))
        rows = users.rows(torch.arange(vocabulary))
        assert torch.equal(rows[: stop + 500, 0], torch.arange(stop + 500).float())
        expected = InitialValues(users.spec).rows(torch.arange(stop + 500, vocabulary))
        assert torch.equal(rows[stop + 500 :], expected)
    assert {is_array for _, is_array in kinds} == {False, True}
    assert all(is_array == (nbytes >= 4 * vocabulary) for nbytes, is_array in kinds)
    tensors = [table._keys, table._touched, table.value.storage]
    assert table.nbytes == sum(each.nbytes for each in tensors) + 4 * vocabulary


@pytest.mark.parametrize("vocabulary", [3000, 30_000, 1_000_000])
def test_a_table_never_takes_more_than_it_has_asked_for(vocabulary: int) -> None:
    users, limit = (
        hosted(table_spec("users", (vocabulary, 4), NORMAL)),
        VariableMemoryLimit(1 << 40),
    )
    table = table_of(users)
    limit.record("users", table.nbytes)
    for start in range(0, 3000, 100):
        stored(users, torch.arange(start, start + 100), limit)
        assert table.nbytes <= limit.used
        limit.record("users", table.nbytes)


def test_a_table_without_memory_for_an_array_goes_on_with_its_index() -> None:
    vocabulary = 100_000
    users = hosted(table_spec("users", (vocabulary, 4), NORMAL))
    # Enough for the rows and an index, and too little for the array, too.
    limit = VariableMemoryLimit(15_000 * 32 + KeyIndex.nbytes_for(15_000))
    for start in range(0, 13_000, 100):
        stored(users, torch.arange(start, start + 100), limit)
        limit.record("users", table_of(users).nbytes)
    assert isinstance(table_of(users)._index, KeyIndex)
    assert torch.equal(users.rows(torch.arange(13_000))[:, 0], torch.arange(13_000).float())
