"""What the description of a table must say."""

from __future__ import annotations

import math

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import decode_dtype
from stratagem_psserver.tables.retention import Retention
from stratagem_psserver.tables.table import Table, check_room


def row_nbytes(spec: VariableSpec) -> int:
    """Bytes of one row of a variable."""
    row = math.prod(spec.tensor.shape[1:])
    return row * decode_dtype(spec.tensor.dtype).itemsize


def check_table(spec: VariableSpec) -> None:
    """Checks the description of a table that is no slot.

    Raises:
        InvalidArgumentError: It has no rows or no initial value, its shape and its
            kind of keys contradict each other, or not one row fits its limits.
    """
    if problem := _problem(spec):
        raise InvalidArgumentError(
            f"{spec.name!r} cannot be a table: {problem}", variable=spec.name
        )
    most = Retention.of(spec.table).most_rows(row_nbytes(spec))
    check_room(spec.name, 1, most)


def check_slot(spec: VariableSpec, owner: VariableSpec, table: Table | None) -> None:
    """Checks the description of a slot that is a table against its owner.

    Args:
        spec: The slot.
        owner: The variable that it belongs to.
        table: The owner's rows; None if the same request creates it.

    Raises:
        InvalidArgumentError: The owner is no table, has other rows, or not one row
            fits its limits together with this slot.
    """
    problem = _problem(spec)
    if not owner.HasField("table"):
        problem = f"{owner.name!r}, whose slot it is, is none"
    elif spec.tensor.shape[:1] != owner.tensor.shape[:1]:
        problem = f"{owner.name!r}, whose slot it is, has other rows"
    if problem:
        raise InvalidArgumentError(
            f"{spec.name!r} cannot be a table: {problem}", variable=spec.name
        )
    if table is not None:
        table.check_fit(1, row_nbytes(spec))


def _problem(spec: VariableSpec) -> str:
    shape = list(spec.tensor.shape)
    if not shape:
        return "a scalar has no rows"
    if not spec.HasField("initializer"):
        return "rows that are not stored need an initializer"
    if spec.table.HasField("dynamic") and shape[0]:
        return f"with dynamic keys its shape begins with 0, not {shape[0]}"
    return ""
