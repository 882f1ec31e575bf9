"""Reading variables: whole, a slice, or some rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stratagem_proto.errors import InvalidArgumentError, OutOfRangeError
from stratagem_proto.v1.parameter_server_pb2 import Selection
from stratagem_psserver.store import Variable


def is_wanted(variable: Variable, selection: Selection) -> bool:
    """Whether the reader lacks the variable's present version."""
    return (
        not selection.HasField("newer_than") or variable.version > selection.newer_than
    )


def select(variable: Variable, selection: Selection) -> torch.Tensor:
    """What is selected of the variable; a view of its value where it can be one.

    Raises:
        InvalidArgumentError: The slice has another rank than the variable, or the
            rows are no whole int64 numbers.
        OutOfRangeError: The part leaves the variable's bounds.
    """
    match selection.WhichOneof("part"):
        case "slice":
            return _box(variable, selection.slice.start, selection.slice.size)
        case "rows":
            rows = _indices(variable, selection.rows.indices)
            check_rows(variable, rows)
            return variable.value.index_select(0, rows)
    return variable.value


def _box(variable: Variable, start: Sequence[int], size: Sequence[int]) -> torch.Tensor:
    shape = list(variable.value.shape)
    if not len(start) == len(size) == len(shape):
        raise InvalidArgumentError(
            f"a slice of {variable.name!r}, shape {shape}, needs {len(shape)} starts "
            f"and sizes; it has {len(start)} and {len(size)}",
            variable=variable.name,
        )
    value = variable.value
    for dim, (first, count) in enumerate(zip(start, size, strict=True)):
        if first < 0 or count < 0 or first + count > shape[dim]:
            raise OutOfRangeError(
                f"the slice of {variable.name!r} from {list(start)} of size "
                f"{list(size)} leaves its shape {shape}",
                variable=variable.name,
            )
        value = value.narrow(dim, first, count)
    return value


def _indices(variable: Variable, data: bytes) -> torch.Tensor:
    if len(data) % 8:
        raise InvalidArgumentError(
            f"the rows of {variable.name!r} are {len(data)} bytes long, which is no "
            "multiple of the 8 of an int64",
            variable=variable.name,
        )
    if not data:
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(bytearray(data), dtype=torch.int64)


def check_rows(variable: Variable, rows: torch.Tensor) -> None:
    """Checks row indices against a variable.

    Raises:
        InvalidArgumentError: They are no vector of int64, or the variable is a scalar.
        OutOfRangeError: An index is negative or beyond the last row.
    """
    if rows.dtype != torch.int64 or rows.dim() != 1:
        raise InvalidArgumentError(
            f"the rows of {variable.name!r} are {rows.dtype} of shape "
            f"{list(rows.shape)}; send a vector of torch.int64",
            variable=variable.name,
        )
    if variable.value.dim() == 0:
        raise InvalidArgumentError(
            f"variable {variable.name!r} is a scalar and has no rows",
            variable=variable.name,
        )
    count = variable.value.shape[0]
    if not rows.numel():
        return
    lowest, highest = int(rows.min()), int(rows.max())
    if lowest < 0 or highest >= count:
        raise OutOfRangeError(
            f"rows {lowest} to {highest} of {variable.name!r} were asked for; it has "
            f"{count} rows, from 0",
            variable=variable.name,
        )
