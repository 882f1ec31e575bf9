"""The log lines of parameter servers, one JSON object each."""

from __future__ import annotations

import json

_ROUTINE_LEVELS = {"debug", "info"}


def is_routine(line: str) -> bool:
    """Whether a line is of no interest while all goes well."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return False
    return isinstance(record, dict) and record.get("level") in _ROUTINE_LEVELS
