"""What stands in closures for things that workers keep."""

from __future__ import annotations

from abc import ABC, abstractmethod


class RemoteObject(ABC):
    """Stands for what a worker keeps under a handle: a result, or its own part.

    A closure that has one gets what the worker that runs it keeps. Whoever sends the
    closure sees to it that the worker has it.
    """

    @abstractmethod
    def _shipped_handle(self) -> int:
        """Return the handle, from `ClosurePickler.new_handle`."""

    @abstractmethod
    def _shipped_subject(self) -> object:
        """Return the object while which lives the handle is valid."""
