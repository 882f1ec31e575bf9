"""Faults that fuzzing has to find, each by the target that it is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratagem_proto.programs import graph_program
from stratagem_proto.wire import encodings, fields
from tests.simulation.planted.plant import Plant, replaced

_FIXED = fields._FIXED32, fields._FIXED64
_read_value = fields.read_value


def _believes(*_: object) -> None:
    """Check nothing."""


def _takes_for_bytes(data: memoryview, position: int, wire_type: int) -> Any:
    """Take a number of a fixed width for bytes."""
    value, end = _read_value(data, position, wire_type)
    return (data[position:end] if wire_type in _FIXED else value), end


PLANTED: Mapping[str, tuple[str, Plant]] = {
    "a shape is believed": ("encodings", replaced(encodings, "_require", _believes)),
    "an argument is believed": ("graphs", replaced(graph_program, "_check_item", _believes)),
    "a number is taken for bytes": (
        "stream-frames",
        replaced(fields, "read_value", _takes_for_bytes),
    ),
}
"""By the name of the fault: the target that finds it, and the fault."""
