"""Reading parts of variables and writing to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    RowIndexError,
    StratagemError,
)
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.tensor_pb2 import (
    DATA_TYPE_BFLOAT16,
    DATA_TYPE_FLOAT16,
    DATA_TYPE_FLOAT32,
    DataType,
)
from stratagem_proto.v1.variable_requests_pb2 import (
    ASSIGN_MODE_ADD,
    ASSIGN_MODE_DIVIDE,
    ASSIGN_MODE_MAXIMUM,
    ASSIGN_MODE_MINIMUM,
    ASSIGN_MODE_MULTIPLY,
    ASSIGN_MODE_SET,
    ASSIGN_MODE_SUBTRACT,
    ASSIGN_MODE_UNSPECIFIED,
    Assignment,
    AssignMode,
)
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.variables.assignments import prepare
from stratagem_psserver.variables.reads import ReadPlan, _wanted, select
from stratagem_psserver.variables.store import Variable, VariableStore
from tests.psserver.wire import indices, model_spec

pytestmark = pytest.mark.plain_servers_too

MODES: dict[AssignMode, Callable[[Any, Any], Any]] = {
    ASSIGN_MODE_SET: lambda old, new: new,
    ASSIGN_MODE_ADD: lambda old, new: old + new,
    ASSIGN_MODE_SUBTRACT: lambda old, new: old - new,
    ASSIGN_MODE_MULTIPLY: lambda old, new: old * new,
    ASSIGN_MODE_DIVIDE: lambda old, new: old / new,
    ASSIGN_MODE_MINIMUM: min,
    ASSIGN_MODE_MAXIMUM: max,
}


def hosting(value: torch.Tensor) -> tuple[VariableStore, Variable]:
    store = VariableStore()
    store.create([model_spec("w", value)], [value.clone()])
    return store, store.get("w")


def test_a_slice_is_a_box_of_the_variable() -> None:
    value = torch.arange(24.0).reshape(2, 3, 4)
    box = pb.Slice(start=[0, 1, 2], size=[2, 2, 1])
    selected = select(hosting(value)[1], pb.Selection(variable="w", slice=box))
    assert torch.equal(selected.tensor(), value[0:2, 1:3, 2:3])


def test_rows_come_in_the_order_in_which_they_are_wanted() -> None:
    value = torch.arange(8.0).reshape(4, 2)
    rows = pb.Rows(indices=indices(3, 0, 3))
    selected = select(hosting(value)[1], pb.Selection(variable="w", rows=rows))
    assert torch.equal(selected.tensor(), value[[3, 0, 3]])


def test_no_rows_are_an_empty_tensor_of_the_rows_shape() -> None:
    selection = pb.Selection(variable="w", rows=pb.Rows())
    selected = select(hosting(torch.zeros(4, 2))[1], selection)
    assert selected.tensor().shape == (0, 2)


@pytest.mark.parametrize(
    "selection",
    [
        pb.Selection(variable="w"),
        pb.Selection(variable="w", slice=pb.Slice(start=[1, 1], size=[2, 1])),
        pb.Selection(variable="w", rows=pb.Rows(indices=indices(3, 0, 3))),
        pb.Selection(variable="w", rows=pb.Rows()),
    ],
    ids=["whole", "slice", "rows", "no rows"],
)
def test_what_a_selection_takes_is_known_before_it_is_taken(
    selection: pb.Selection,
) -> None:
    selected = select(hosting(torch.zeros(4, 2))[1], selection)
    tensor = selected.tensor()
    assert (selected.sent, selected.nbytes) == (spec_of(tensor), tensor.nbytes)


@pytest.mark.parametrize("narrowed_to", [None, DATA_TYPE_BFLOAT16])
@pytest.mark.parametrize(
    "part",
    [
        {},
        {"slice": pb.Slice(start=[1, 1], size=[2, 1])},
        {"rows": pb.Rows(indices=indices(3, 0, 3))},
        {"rows": pb.Rows()},
    ],
    ids=["whole", "slice", "rows", "no rows"],
)
def test_what_is_selected_may_be_written_to_memory_that_is_there(
    part: dict[str, Any], narrowed_to: Any
) -> None:
    selection = pb.Selection(variable="w", narrowed_to=narrowed_to, **part)
    store, _ = hosting(torch.randn(4, 2))
    choice = ReadPlan.for_selections(store, [selection, selection])
    into = [torch.empty(shape, dtype=dtype) for dtype, shape in choice.layout.kinds]
    choice.fill(into)
    assert all(map(torch.equal, into, choice.tensors()))


@pytest.mark.parametrize("part", [{}, {"rows": pb.Rows(indices=indices(2, 0))}])
def test_a_reader_may_have_floats_rounded(part: dict[str, Any]) -> None:
    value = torch.randn(4, 2)
    selection = pb.Selection(narrowed_to=DATA_TYPE_BFLOAT16, **part)
    selected = select(hosting(value)[1], selection)
    expected = value[[2, 0]] if part else value
    assert torch.equal(selected.tensor(), expected.bfloat16())
    assert selected.sent == spec_of(expected.bfloat16())
    assert selected.encoding is not None
    assert selected.encoding.decoded == spec_of(expected)
    assert selected.nbytes == expected.nbytes


@pytest.mark.parametrize(
    ("dtype", "narrowed_to"),
    [
        (torch.int64, DATA_TYPE_BFLOAT16),
        (torch.bfloat16, DATA_TYPE_FLOAT16),
        (torch.float64, DATA_TYPE_FLOAT32),
    ],
    ids=["no float", "not wider", "not narrow"],
)
def test_only_wider_floats_are_rounded(dtype: torch.dtype, narrowed_to: DataType) -> None:
    selection = pb.Selection(variable="w", narrowed_to=narrowed_to)
    with pytest.raises(InvalidArgumentError, match=r"'w' is .* and cannot be narrowed to"):
        select(hosting(torch.ones(2, dtype=dtype))[1], selection)


@pytest.mark.parametrize(
    ("start", "size", "error"),
    [
        ([0], [1], InvalidArgumentError),
        ([0, 0], [1], InvalidArgumentError),
        ([-1, 0], [1, 1], RowIndexError),
        ([0, 0], [-1, 1], RowIndexError),
        ([3, 0], [2, 1], RowIndexError),
    ],
)
def test_a_slice_outside_of_the_variable_is_refused(
    start: list[int], size: list[int], error: type[StratagemError]
) -> None:
    selection = pb.Selection(variable="w", slice=pb.Slice(start=start, size=size))
    with pytest.raises(error, match="'w'"):
        select(hosting(torch.zeros(4, 2))[1], selection)


@pytest.mark.parametrize(
    ("value", "rows", "error"),
    [
        (torch.zeros(4, 2), indices(4), RowIndexError),
        (torch.zeros(4, 2), indices(-1), RowIndexError),
        (torch.zeros(4, 2), b"odd", InvalidArgumentError),
        (torch.tensor(1.0), indices(0), InvalidArgumentError),
    ],
)
def test_rows_that_do_not_exist_are_refused(
    value: torch.Tensor, rows: bytes, error: type[StratagemError]
) -> None:
    selection = pb.Selection(variable="w", rows=pb.Rows(indices=rows))
    with pytest.raises(error, match="'w'"):
        select(hosting(value)[1], selection)


def test_only_a_newer_version_is_wanted() -> None:
    variable = hosting(torch.zeros(1))[1]
    assert _wanted([variable], [pb.Selection(variable="w")]) == [True]
    assert _wanted([variable], [pb.Selection(variable="w", newer_than=0)]) == [True]
    assert _wanted([variable], [pb.Selection(variable="w", newer_than=1)]) == [False]


def write(
    store: VariableStore,
    mode: AssignMode,
    value: torch.Tensor,
    rows: torch.Tensor | None = None,
) -> None:
    item = Assignment(variable="w", mode=mode, value=0)
    if rows is not None:
        item.rows = 1
    tensors = [value] if rows is None else [value, rows]
    for each in prepare(store, [item], tensors):
        each.run()


@pytest.mark.parametrize("mode", MODES)
def test_an_assignment_combines_the_present_value_with_the_new(
    mode: AssignMode,
) -> None:
    old, new = torch.tensor([6.0, -2.0]), torch.tensor([3.0, 4.0])
    store, variable = hosting(old)
    write(store, mode, new)
    expected = [MODES[mode](a, b) for a, b in zip(old, new, strict=True)]
    assert variable.value.tolist() == [float(each) for each in expected]


@given(
    mode=st.sampled_from(list(MODES)),
    updates=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=12),
)
def test_repeated_rows_accumulate_in_the_order_given(
    mode: AssignMode, updates: list[tuple[int, int]]
) -> None:
    """The contract: "Repeated rows accumulate in the order given"."""
    store, variable = hosting(torch.full((4, 1), 64.0))
    rows = torch.tensor([row for row, _ in updates], dtype=torch.int64)
    values = torch.tensor([[float(each)] for _, each in updates]).reshape(-1, 1)
    expected = torch.full((4, 1), 64.0)
    for row, value in zip(rows.tolist(), values, strict=True):
        expected[row] = MODES[mode](expected[row], value)
    write(store, mode, values, rows)
    assert torch.equal(variable.value, expected)


@pytest.mark.parametrize(
    ("value", "rows", "mode", "error"),
    [
        (torch.zeros(3, 2), None, ASSIGN_MODE_SET, InvalidArgumentError),
        (torch.zeros(4, 2).double(), None, ASSIGN_MODE_SET, InvalidTypeError),
        (torch.zeros(4, 2), None, ASSIGN_MODE_UNSPECIFIED, InvalidArgumentError),
        (torch.zeros(1, 2), torch.tensor([9]), ASSIGN_MODE_SET, RowIndexError),
        (
            torch.zeros(2, 2),
            torch.tensor([1]),
            ASSIGN_MODE_SET,
            InvalidArgumentError,
        ),
        (
            torch.zeros(1, 2),
            torch.tensor([1.0]),
            ASSIGN_MODE_SET,
            InvalidArgumentError,
        ),
    ],
)
def test_a_write_that_does_not_fit_names_the_variable_and_changes_nothing(
    value: torch.Tensor,
    rows: torch.Tensor | None,
    mode: AssignMode,
    error: type[StratagemError],
) -> None:
    store, variable = hosting(torch.ones(4, 2))
    with pytest.raises(error, match="'w'"):
        write(store, mode, value, rows)
    assert torch.equal(variable.value, torch.ones(4, 2))


@pytest.mark.parametrize(
    ("dtype", "mode"),
    [
        (torch.int64, ASSIGN_MODE_DIVIDE),
        (torch.bool, ASSIGN_MODE_SUBTRACT),
        (torch.complex64, ASSIGN_MODE_MAXIMUM),
    ],
)
def test_an_operation_that_the_dtype_lacks_is_refused(dtype: torch.dtype, mode: AssignMode) -> None:
    store, _ = hosting(torch.zeros(2, dtype=dtype))
    with pytest.raises(InvalidTypeError, match="does not exist"):
        write(store, mode, torch.ones(2, dtype=dtype))


def test_an_assignment_names_a_tensor_that_travels_with_it() -> None:
    store, _ = hosting(torch.zeros(2))
    item = Assignment(variable="w", mode=ASSIGN_MODE_SET, value=1)
    with pytest.raises(InvalidArgumentError, match="tensor 1 of 1"):
        prepare(store, [item], [torch.zeros(2)])
