"""Checks of the descriptions of new variables, and their initial values."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stratagem_proto.division import is_part
from stratagem_proto.errors import InvalidArgumentError, ResourceExhaustedError
from stratagem_proto.programs.random_rows import (
    NARROW,
    InitialValues,
    check_initializer,
    row_nbytes,
)
from stratagem_proto.protocol import MAX_LABEL_LENGTH, MAX_NAME_LENGTH, MAX_STRUCTURE_LENGTH
from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_FLOAT32, DataType, TensorSpec
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_UNSPECIFIED, EvictionOrder, VariableSpec
from stratagem_proto.wire.tensors import decode_dtype, encode_dtype, nbytes_of
from stratagem_psserver.tables.retention import Retention
from stratagem_psserver.tables.table import Table, check_room


def sent_tensors(specs: Sequence[VariableSpec]) -> list[TensorSpec]:
    """Return the descriptions of the tensors that come with a request, in their order."""
    return [spec.tensor for spec in specs if not spec.HasField("initializer")]


def check_made(specs: Sequence[VariableSpec]) -> int:
    """Check the descriptions of values that the server makes, and return the size of the values.

    Raises:
        InvalidArgumentError: A value cannot be made as described.
    """
    made = [spec for spec in specs if spec.HasField("initializer")]
    nbytes = {spec.name: nbytes_of(spec.tensor) for spec in made}
    for spec in made:
        check_initializer(spec)
    return sum(nbytes[spec.name] for spec in made if not spec.HasField("table"))


def initial_values(
    specs: Sequence[VariableSpec], sent: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the initial value of each variable; that of a table has no rows.

    Args:
        specs: Descriptions that `check_made` has accepted.
        sent: The tensors of the request.

    Raises:
        ResourceExhaustedError: The machine has no memory for them.
    """
    tensors = iter(sent)
    return [_made(spec) if spec.HasField("initializer") else next(tensors) for spec in specs]


def _made(spec: VariableSpec) -> torch.Tensor:
    if spec.HasField("table"):
        shape = (0, *spec.tensor.shape[1:])
        return torch.empty(shape, dtype=decode_dtype(spec.tensor.dtype))
    try:
        return InitialValues(spec).whole()
    except RuntimeError as error:
        raise ResourceExhaustedError(
            f"this machine has no memory for {spec.name!r} of shape "
            f"{list(spec.tensor.shape)}; divide it over more servers, or make it a "
            "table"
        ) from error


def check_value(spec: VariableSpec, value: torch.Tensor) -> None:
    """Check the initial value of a variable; that of a table has no rows.

    Raises:
        InvalidArgumentError: The value is not as described, or the variable has no kind.
    """
    nbytes_of(spec.tensor)
    rows = [0] if spec.HasField("table") else spec.tensor.shape[:1]
    shape = (*rows, *spec.tensor.shape[1:])
    expected = (decode_dtype(spec.tensor.dtype), shape)
    if expected != (value.dtype, tuple(value.shape)):
        raise InvalidArgumentError(
            f"the initial value of {spec.name!r} is {value.dtype} of shape "
            f"{list(value.shape)}; its description says {expected[0]} of shape "
            f"{list(expected[1])}",
            variable=spec.name,
        )
    if spec.kind == VARIABLE_KIND_UNSPECIFIED:
        raise InvalidArgumentError(
            f"variable {spec.name!r} has no kind; say MODEL, SLOT or NON_SLOT", variable=spec.name
        )


def check_partition(spec: VariableSpec) -> None:
    """Check that a part of a partitioned variable lies within the whole.

    Raises:
        InvalidArgumentError: It does not.
    """
    if not spec.HasField("partition") or is_part(spec):
        return
    part, shape = spec.partition, list(spec.tensor.shape)
    where = f"at {list(part.offset)}"
    if part.HasField("interleaved"):
        where = f"with number {part.interleaved.part} of {part.interleaved.parts}"
    raise InvalidArgumentError(
        f"variable {spec.name!r} of shape {shape} {where} "
        f"is not a part of a variable of shape {list(part.full_shape)}",
        variable=spec.name,
    )


def check_origin(spec: VariableSpec) -> None:
    """Check that what tells a variable from its namesakes is no longer than it may be.

    Raises:
        InvalidArgumentError: It is.
    """
    origin = spec.origin
    lengths = {
        "wanted_name": (origin.wanted_name, MAX_NAME_LENGTH),
        "structure": (origin.structure, MAX_STRUCTURE_LENGTH),
        "label": (origin.label, MAX_LABEL_LENGTH),
    }
    for field, (text, most) in lengths.items():
        if len(text) > most:
            raise InvalidArgumentError(
                f"the origin of variable {spec.name!r} has a {field} of {len(text)} characters; "
                f"{most} are allowed",
                variable=spec.name,
            )


def check_table(spec: VariableSpec) -> None:
    """Check the description of a table that is not a slot.

    Raises:
        InvalidArgumentError: It is a scalar or has no initializer, its shape contradicts its kind
            of keys, or its limits are too small for one row.
    """
    if problem := _problem(spec):
        raise InvalidArgumentError(
            f"{spec.name!r} cannot be a table: {problem}", variable=spec.name
        )
    retention = Retention.from_spec(spec.table)
    most = retention.most_rows(row_nbytes(spec) + retention.mark_bytes)
    check_room(spec.name, 1, most)


def check_slot(spec: VariableSpec, owner: VariableSpec, table: Table | None) -> None:
    """Check the description of a slot that is a table against its owner.

    Args:
        spec: The slot.
        owner: The variable that it belongs to.
        table: The owner's rows; None if the same request creates the owner.

    Raises:
        InvalidArgumentError: The owner is not a table or has other rows, or its limits are too
            small for one row with this slot.
    """
    problem = _problem(spec)
    if not owner.HasField("table"):
        problem = f"its owner {owner.name!r} is not a table"
    elif spec.tensor.shape[:1] != owner.tensor.shape[:1]:
        problem = f"its owner {owner.name!r} has other rows"
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
    is_wide = spec.tensor.dtype == DATA_TYPE_FLOAT32 and not spec.slot_of
    number = spec.table.row_dtype
    if number and not (is_wide and number in map(encode_dtype, NARROW)):
        dtype = DataType.Name(number) if number in DataType.values() else number
        return f"rows of {decode_dtype(spec.tensor.dtype)} cannot be stored as {dtype}"
    if (order := spec.table.dynamic.eviction_order) not in EvictionOrder.values():
        return f"this server does not know its order of eviction, {order}"
    return ""
