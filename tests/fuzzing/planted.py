"""Faults that fuzzing has to find, each by the target that it is of."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem_proto.programs import graph_program
from stratagem_proto.wire import encodings, frames
from tests.simulation.planted.plant import Plant, replaced


def _believes(*_: object) -> None:
    """Check nothing."""


def _takes_for_bytes(value: int | memoryview) -> memoryview:
    """Take a number for bytes, of which there are none."""
    return memoryview(b"") if isinstance(value, int) else value


PLANTED: Mapping[str, tuple[str, Plant]] = {
    "a shape is believed": ("encodings", replaced(encodings, "_require", _believes)),
    "an argument is believed": ("graphs", replaced(graph_program, "_check_item", _believes)),
    "a number is taken for bytes": (
        "stream-frames",
        replaced(frames, "bytes_of", _takes_for_bytes),
    ),
}
"""By the name of the fault: the target that finds it, and the fault."""
