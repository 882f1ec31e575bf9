"""Code that keeps the name of its file, so that tracebacks show the lines of functions sent."""

from __future__ import annotations

import io
from types import CodeType
from typing import Any

from cloudpickle import cloudpickle

_DYNAMIC = "<dynamic-code>"
"""What cloudpickle puts in place of a file's name, from 3.1.3 on."""


def _reduced(code: CodeType) -> tuple[Any, ...]:
    making, parts = cloudpickle._code_reduce(code)
    return making, tuple(code.co_filename if part == _DYNAMIC else part for part in parts)


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc] # has no types
    """Pickles as cloudpickle does, with the files that code is in."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({CodeType: _reduced})


def dumps(value: object) -> bytes:
    """Return a pickle of a value, which `pickle.loads` reads.

    Raises:
        Exception: What came of pickling it.
    """
    buffer = io.BytesIO()
    CodePickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()
