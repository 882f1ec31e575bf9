"""Reading variables: whole, a slice, or some rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stratagem_proto.errors import InvalidArgumentError, OutOfRangeError
from stratagem_proto.tensors import encode_dtype
from stratagem_proto.v1.parameter_server_pb2 import Selection
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_psserver.store import Variable


@dataclass(frozen=True)
class Selected:
    """What is selected of a variable; no memory is taken before `tensor`.

    Attributes:
        view: The variable's value or a box of it.
        rows: Which rows of that, an int64 vector; None for all.
    """

    view: torch.Tensor
    rows: torch.Tensor | None = None

    @property
    def spec(self) -> TensorSpec:
        shape = list(self.view.shape)
        if self.rows is not None:
            shape[0] = len(self.rows)
        return TensorSpec(dtype=encode_dtype(self.view.dtype), shape=shape)

    @property
    def nbytes(self) -> int:
        if self.rows is None:
            return self.view.nbytes
        return len(self.rows) * self.view[:1].nbytes

    def tensor(self) -> torch.Tensor:
        return self.view if self.rows is None else self.view.index_select(0, self.rows)


def is_wanted(variable: Variable, selection: Selection) -> bool:
    """Whether the reader lacks the variable's present version."""
    return (
        not selection.HasField("newer_than") or variable.version > selection.newer_than
    )


def select(variable: Variable, selection: Selection) -> Selected:
    """Finds out what is selected of a variable.

    Raises:
        InvalidArgumentError: The slice has another rank than the variable, or the
            rows are no whole int64 numbers.
        OutOfRangeError: The part leaves the variable's bounds.
    """
    match selection.WhichOneof("part"):
        case "slice":
            box = _box(variable, selection.slice.start, selection.slice.size)
            return Selected(box)
        case "rows":
            rows = _indices(variable, selection.rows.indices)
            check_rows(variable, rows)
            return Selected(variable.value, rows)
    return Selected(variable.value)


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
