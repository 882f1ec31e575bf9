"""Where in the user's source something happens, for messages."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch

from stratagem_proto.errors import UpdateFunctionError

# Frames of these packages are how the user's line is carried out, not the line.
_OURS = tuple(
    str(folder) + os.sep
    for folder in (
        Path(__file__).resolve().parents[1],
        Path(torch.__file__).parent,
        Path(np.__file__).parent,
    )
)
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep


class Location(NamedTuple):
    """A line of a source file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def short(self) -> str:
        """Without the folder, as servers get to know it: "file.py:12"."""
        return f"{os.path.basename(self.file)}:{self.line}"


def here() -> Location:
    """Return the innermost line that belongs to no library that it calls."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno)


def _is_users(file: str) -> bool:
    if file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file:
        return False
    return not file.startswith(_OURS)


def definition_of(fn: Callable[..., Any]) -> Location:
    """Return the first line of a function, or of the class of a callable object."""
    fn = getattr(fn, "func", fn)
    fn = getattr(fn, "__func__", fn)
    if not isinstance(fn, FunctionType):
        fn = getattr(type(fn).__call__, "__func__", type(fn).__call__)
    code = getattr(fn, "__code__", None)
    return Location(code.co_filename, code.co_firstlineno) if code else here()


def refused(what: str, cure: str, location: Location | None = None) -> UpdateFunctionError:
    """Return the error for what an update function cannot do on a server."""
    location = location or here()
    return UpdateFunctionError(f"{location}: {what}; {cure}", location=str(location))
