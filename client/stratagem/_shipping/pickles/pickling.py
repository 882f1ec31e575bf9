"""Pickles that name objects instead of containing them."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import cloudpickle

from stratagem._shipping.pickles import tensors
from stratagem._shipping.pickles.classes import Classes, ClassUnpickler

Name = Callable[[Any], "int | None"]
"""Returns the handle of an object, None for what travels by value."""


class Pickler(cloudpickle.Pickler):  # type: ignore[misc] # has no types
    """Writes values one by one: functions and classes as cloudpickle does.

    What modules have that others can import is named, in `__main__` it is contained.

    Args:
        name: Says what is named by its handle.
    """

    def __init__(self, name: Name) -> None:
        self._buffer = io.BytesIO()
        # Not as a method: it is called for each object.
        self.persistent_id = name
        super().__init__(self._buffer, protocol=5)

    def write(self, value: object) -> bytes:
        """Return a pickle of one value."""
        self._buffer.seek(0)
        self._buffer.truncate()
        try:
            self.dump(value)
            return self._buffer.getvalue()
        finally:
            # It would keep alive what it has written.
            self.clear_memo()

    def reducer_override(self, value: Any) -> Any:
        if tensors.is_plain(value):
            return tensors.reduced(value)
        return super().reducer_override(value)


class Unpickler(ClassUnpickler):
    """Reads what `Pickler` writes.

    Args:
        payload: The pickle.
        find: Returns the object of a handle.
        classes: Those that there are.
    """

    def __init__(
        self, payload: bytes, find: Callable[[int], Any], classes: Classes
    ) -> None:
        super().__init__(payload, classes)
        self._find = find

    def persistent_load(self, handle: Any) -> Any:
        return self._find(handle)
