"""What clients report for checkpoints, which the one that saves reads for all."""

from __future__ import annotations

import json

from google.protobuf.message import DecodeError

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.session_pb2 import WorkerReport

# Clients send 60 kB for each of two steps at most.
_MOST_BYTES = 256 << 10


def check_report(label: str, report: bytes) -> None:
    """Checks what a client reports as it arrives, before a save meets it.

    Args:
        label: The client, for messages.
        report: A serialised WorkerReport.

    Raises:
        InvalidArgumentError: It is none, has no JSON objects, or is too long.
    """
    if len(report) > _MOST_BYTES:
        raise InvalidArgumentError(
            f"{label} reports {len(report)} bytes of what it needs to go on; at most "
            f"{_MOST_BYTES} are kept for checkpoints"
        )
    try:
        states = [
            json.loads(each.content) for each in WorkerReport.FromString(report).states
        ]
    except (DecodeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{label} reports what is no JSON, so that no checkpoint could have it: "
            f"{error}"
        ) from error
    if not all(isinstance(state, dict) for state in states):
        raise InvalidArgumentError(
            f"{label} reports JSON that is no object of states by their names"
        )
