"""The pickles of calls that were scheduled lately."""

from __future__ import annotations

from collections import OrderedDict

from stratagem._shipping.calls.call_marks import Mark

_MOST = 64
_LARGEST = 1 << 16
"""Bytes."""


class PickledCalls:
    """Keeps some pickles, by the marks of their calls.

    A function that uses torch and a variable takes 0.9 ms to pickle, most of it to look
    for submodules that it may need, and 0.03 ms to be found here.
    """

    def __init__(self) -> None:
        self._pickles: OrderedDict[Mark, bytes] = OrderedDict()

    def find(self, mark: Mark | None) -> bytes | None:
        """Return the pickle of a call that had this mark, if there is one."""
        found = None if mark is None else self._pickles.get(mark)
        if mark is not None and found is not None:
            self._pickles.move_to_end(mark)
        return found

    def keep(self, mark: Mark | None, pickled: bytes) -> None:
        """Keep the pickle of a call, if it has a mark."""
        if mark is not None and len(pickled) <= _LARGEST:
            self._pickles[mark] = pickled
            if len(self._pickles) > _MOST:
                self._pickles.popitem(last=False)
