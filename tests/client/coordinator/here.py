"""Objects that functions on workers of this process share with the test."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakValueDictionary

from tests.waiting import eventually

_here: WeakValueDictionary[int, Any] = WeakValueDictionary()


class Here:
    """Travels to workers in this process as itself."""

    def __init__(self) -> None:
        _here[id(self)] = self

    def __reduce__(self) -> Any:
        return _found, (id(self),)


def _found(key: int) -> Any:
    return _here[key]


class Journal(Here):
    """What functions write down, in the order in which they do."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Any] = []

    def write(self, entry: Any) -> None:
        self.entries.append(entry)


class Gate(Here):
    """Where functions wait until the test lets them go on."""

    def __init__(self) -> None:
        super().__init__()
        self._inside = Journal()
        self._open = threading.Event()

    def pass_through(self) -> None:
        """Waits; can be interrupted."""
        self._inside.write("somebody")
        while not self._open.wait(0.005):
            pass

    def open(self) -> None:
        self._open.set()

    def wait_for(self, number: int = 1) -> None:
        """Waits until so many have come to the gate."""
        eventually(lambda: len(self._inside.entries) >= number)
