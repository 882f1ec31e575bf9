"""Seeing writes to hosted parameters through their `.data`.

torch gives out a tensor that shares the memory and counts writes by itself, so that the parameter
shows none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch.nn import Parameter

# More of them are looked through before the next step does.
_MOST_NEW = 64

_data: Any = torch._C.TensorBase.__dict__["data"]
"""What torch has for all tensors."""


class DataViews:
    """Tensors through which a parameter may be written unseen."""

    def __init__(self) -> None:
        # Those that nobody else may have any more tell what was done through them.
        self._new: list[torch.Tensor] = []
        self._known: list[tuple[ref[torch.Tensor], int]] = []
        self._written = False

    def add(self, data: torch.Tensor) -> None:
        """Take in a tensor that nobody has written through yet."""
        if len(self._new) >= _MOST_NEW:
            self._look()
        self._new.append(data)

    def were_written(self) -> bool:
        """Return whether one has been written since they were accepted."""
        self._look()
        return self._written

    def accept(self) -> None:
        """Take what was written for known."""
        self._look()
        self._written = False

    def _look(self) -> None:
        """Note what was written, and forget what nobody has any more."""
        each = [(one, at) for data, at in self._known if (one := data()) is not None]
        each += [(data, 0) for data in self._new]
        self._written |= any([data._version != at for data, at in each])
        known = [(ref(data), data._version) for data, _ in each]
        each.clear()
        self._new.clear()
        self._known = [pair for pair in known if pair[0]() is not None]


def watch_data(lend: Callable[[Parameter, torch.Tensor], None]) -> None:
    """Tell of each parameter of the process whose data are given out, from now on.

    Args:
        lend: Is told the parameter and its data; the same function in each call.
    """
    if "data" in vars(Parameter):
        return

    def data_of(parameter: Parameter) -> torch.Tensor:
        data: torch.Tensor = _data.__get__(parameter)
        if not torch.compiler.is_compiling():
            lend(parameter, data)
        return data

    setattr(Parameter, "data", property(data_of, _data.__set__))  # noqa: B010
