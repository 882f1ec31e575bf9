"""Seeing writes to hosted parameters through their `.data`.

torch gives out a tensor that shares the memory and counts writes by itself, so that the
parameter shows none of them.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol
from weakref import ref

import torch
from torch.nn import Parameter

_data: Any = torch._C.TensorBase.__dict__["data"]
"""What torch has for all tensors."""


class Lending(Protocol):
    """Who is told that the data of a parameter were given out."""

    def lend(self, data: torch.Tensor) -> None:
        """Take note of a tensor that shares the parameter's memory."""


class Lent:
    """Tensors through which a parameter may be written unseen."""

    def __init__(self) -> None:
        # Those that nobody else may have any more tell what was done through them.
        self._new: list[torch.Tensor] = []
        self._known: list[tuple[ref[torch.Tensor], int]] = []

    def add(self, data: torch.Tensor) -> None:
        """Take in a tensor that nobody has written through yet."""
        self._new.append(data)

    def were_written(self) -> bool:
        """Return whether one has been written since they were accepted."""
        known = [(data(), version) for data, version in self._known]
        return any(one._version for one in self._new) or any(
            one is not None and one._version != version for one, version in known
        )

    def accept(self) -> None:
        """Take what was written for known, and forget what nobody has any more."""
        kept = [one for data, _ in self._known if (one := data()) is not None]
        given = [(ref(one), one._version) for one in (*kept, *self._new)]
        kept.clear()
        self._new.clear()
        self._known = [pair for pair in given if pair[0]() is not None]


class _Access:
    """The property in place of `Parameter.data`, once a parameter is hosted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_there = False

    def watch(self) -> None:
        with self._lock:
            if not self._is_there:
                setattr(Parameter, "data", property(_lend, _data.__set__))  # noqa: B010
                self._is_there = True


_access = _Access()
_lenders: dict[int, ref[Any]] = {}


def watch_data(parameter: torch.Tensor, lending: Lending) -> None:
    """Tell somebody whenever the data of a parameter are given out.

    Args:
        parameter: Kept alive by who is told.
        lending: Who is told.
    """
    number = id(parameter)
    _lenders[number] = ref(lending, lambda _: _lenders.pop(number, None))
    _access.watch()


def _lend(parameter: Parameter) -> torch.Tensor:
    data: torch.Tensor = _data.__get__(parameter)
    lender = _lenders.get(id(parameter))
    lending = None if lender is None else lender()
    if lending is not None and not torch.compiler.is_compiling():
        lending.lend(data)
    return data
