"""Assignments: values that are set, added or otherwise combined, to whole variables or rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.v1.variable_requests_pb2 import (
    ASSIGN_MODE_ADD,
    ASSIGN_MODE_DIVIDE,
    ASSIGN_MODE_MAXIMUM,
    ASSIGN_MODE_MINIMUM,
    ASSIGN_MODE_MULTIPLY,
    ASSIGN_MODE_SET,
    ASSIGN_MODE_SUBTRACT,
    Assignment,
    AssignMode,
)
from stratagem_psserver.limits import VariableMemoryLimit, allocating, require_memory
from stratagem_psserver.tables.table import Table
from stratagem_psserver.variables.reads import check_rows
from stratagem_psserver.variables.store import Variable, VariableStore

# The copies of rows that an assignment makes: the rows, their values, and a table's sorted ones.
_SCRATCH = 3

Operation = Callable[[torch.Tensor, torch.Tensor], object]

_OPERATIONS: Mapping[AssignMode, Operation] = {
    ASSIGN_MODE_SET: lambda target, value: target.copy_(value),
    ASSIGN_MODE_ADD: lambda target, value: target.add_(value),
    ASSIGN_MODE_SUBTRACT: lambda target, value: target.sub_(value),
    ASSIGN_MODE_MULTIPLY: lambda target, value: target.mul_(value),
    ASSIGN_MODE_DIVIDE: lambda target, value: target.div_(value),
    ASSIGN_MODE_MINIMUM: lambda target, value: torch.minimum(target, value, out=target),
    ASSIGN_MODE_MAXIMUM: lambda target, value: torch.maximum(target, value, out=target),
}


@dataclass(frozen=True)
class PreparedWrite:
    """A checked assignment to one variable."""

    variable: Variable
    operation: Operation
    value: torch.Tensor
    rows: torch.Tensor | None

    @property
    def scratch_nbytes(self) -> int:
        """Bytes of one copy of the rows; 0 if the value is written in place."""
        return 0 if self.rows is None else self.value.nbytes

    def run(self) -> None:
        """Change the variable's value, but not its version."""
        if self.rows is None:
            self.operation(self.variable.value, self.value)
            return
        for rows, value in _without_repetition(self.rows, self.value):
            target = self.variable.rows(rows)
            self.operation(target, value)
            self.variable.put_rows(rows, target)


def _without_repetition(
    rows: torch.Tensor, value: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Split repeated rows into groups of distinct ones: the first occurrences, then the second."""
    ordered, order = rows.sort(stable=True)
    runs = torch.unique_consecutive(ordered, return_counts=True)[1]
    if not runs.numel() or int(runs.max()) == 1:
        yield rows, value
        return
    starts = (runs.cumsum(0) - runs).repeat_interleave(runs)
    occurrence = torch.empty_like(rows)
    occurrence[order] = torch.arange(len(rows)) - starts
    times = occurrence.argsort(stable=True).split(occurrence.bincount().tolist())
    for chosen in times:
        yield rows[chosen], value[chosen]


def prepare(
    store: VariableStore, assignments: Sequence[Assignment], tensors: Sequence[torch.Tensor]
) -> list[PreparedWrite]:
    """Check assignments without changing a variable.

    Raises:
        VariableNotFoundError: There is no such variable; the error suggests the nearest name.
        InvalidArgumentError: A shape, a mode or an index does not fit.
        InvalidTypeError: A dtype is not the variable's, or does not support the operation.
        RowIndexError: A row lies outside of the variable.
    """
    writes = [_prepare_one(store, item, tensors) for item in assignments]
    for table, keys in _keys_by_table(writes).items():
        table.check_fit(len(keys))
    return writes


def run(writes: Sequence[PreparedWrite], memory_limit: VariableMemoryLimit) -> None:
    """Change the values of all variables.

    Args:
        writes: The assignments.
        memory_limit: The limit of the memory for new rows.

    Raises:
        ResourceExhaustedError: There is no memory for new rows; nothing is changed.
    """
    for table, keys in _keys_by_table(writes).items():
        table.make_room(table.find(keys), memory_limit)
    with allocating("assign fewer rows at a time"):
        require_memory([_SCRATCH * write.scratch_nbytes for write in writes])
    for write in writes:
        write.run()


def _keys_by_table(writes: Sequence[PreparedWrite]) -> dict[Table, torch.Tensor]:
    keys: dict[Table, list[torch.Tensor]] = {}
    for write in writes:
        if write.variable.arena is not None and write.rows is not None:
            keys.setdefault(write.variable.arena.table, []).append(write.rows)
    return {table: torch.cat(some).unique() for table, some in keys.items()}


def _prepare_one(
    store: VariableStore, item: Assignment, tensors: Sequence[torch.Tensor]
) -> PreparedWrite:
    variable = store.get(item.variable)
    value = tensor_at(tensors, item.value, variable)
    rows = None
    if item.HasField("rows"):
        rows = tensor_at(tensors, item.rows, variable)
        check_rows(variable, rows)
    check_fit(variable, value, rows, "the value")
    return PreparedWrite(variable, _operation(variable, item.mode), value, rows)


def tensor_at(tensors: Sequence[torch.Tensor], index: int, variable: Variable) -> torch.Tensor:
    """Return the tensor of a request that belongs to a variable, by its index.

    Raises:
        InvalidArgumentError: The request has no tensor of that index.
    """
    if index >= len(tensors):
        raise InvalidArgumentError(
            f"the request for {variable.name!r} names tensor {index} of {len(tensors)}",
            variable=variable.name,
        )
    return tensors[index]


def check_fit(
    variable: Variable, value: torch.Tensor, rows: torch.Tensor | None, what: str
) -> None:
    """Check that a tensor covers a variable, or some rows of it.

    Raises:
        InvalidTypeError: The dtypes differ.
        InvalidArgumentError: The shapes differ.
    """
    hosted = variable.value
    if rows is None and variable.arena is not None:
        raise InvalidArgumentError(
            f"{what} for {variable.name!r} has no rows, but the variable is a table; "
            "send the rows that are meant",
            variable=variable.name,
        )
    if value.dtype != hosted.dtype:
        raise InvalidTypeError(
            f"{what} for {variable.name!r} is {value.dtype}, the variable is "
            f"{hosted.dtype}; convert it with `.to({hosted.dtype})`",
            variable=variable.name,
        )
    expected = hosted.shape if rows is None else (len(rows), *hosted.shape[1:])
    if value.shape != expected:
        covered = "the variable has" if rows is None else "its rows need"
        raise InvalidArgumentError(
            f"{what} for {variable.name!r} has shape {list(value.shape)}, {covered} "
            f"{list(expected)}; send a tensor of that shape",
            variable=variable.name,
        )


def _operation(variable: Variable, mode: AssignMode) -> Operation:
    operation = _OPERATIONS.get(mode)
    if operation is None:
        raise InvalidArgumentError(
            f"the assignment to {variable.name!r} has no mode; say SET, ADD, ...",
            variable=variable.name,
        )
    reason = _inability(mode, variable.value.dtype)
    if reason:
        raise InvalidTypeError(
            f"{AssignMode.Name(mode)} does not exist for {variable.name!r}, a "
            f"{variable.value.dtype}: {reason}",
            variable=variable.name,
        )
    return operation


@cache
def _inability(mode: AssignMode, dtype: torch.dtype) -> str:
    """Return why a dtype does not support an operation; "" if it does."""
    scratch = torch.empty(0, dtype=dtype)
    try:
        _OPERATIONS[mode](scratch, scratch)
    except (RuntimeError, NotImplementedError) as error:
        return str(error)
    return ""
