"""The names of consistency modes, and their messages."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.consistency_pb2 import (
    CONSISTENCY_MODE_ASYNC,
    CONSISTENCY_MODE_BOUNDED,
    CONSISTENCY_MODE_SYNC,
    Consistency,
)

_MODES = {
    "async": CONSISTENCY_MODE_ASYNC,
    "bounded": CONSISTENCY_MODE_BOUNDED,
    "sync": CONSISTENCY_MODE_SYNC,
}

MODE_NAMES: Mapping[int, str] = {mode: name for name, mode in _MODES.items()}


def name_of(consistency: Consistency) -> str:
    """Return "async", "bounded" or "sync".

    Raises:
        InvalidArgumentError: Its mode is unknown.
    """
    name = MODE_NAMES.get(consistency.mode)
    if name is None:
        raise InvalidArgumentError(
            f"consistency has mode {consistency.mode}; it must be one of "
            f"{', '.join(MODE_NAMES.values())}"
        )
    return name


def message_named(name: str, **fields: int) -> Consistency:
    """Return the message of the mode with that name; the inverse of `name_of`."""
    return Consistency(mode=_MODES[name], **fields)
