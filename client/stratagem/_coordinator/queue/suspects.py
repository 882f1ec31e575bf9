"""Closures that may be why workers were lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping


class Suspects:
    """Which closures workers had when they were lost, and how often.

    A worker that is lost may have begun any of several, and does not say any more which one. Each
    of them runs alone from then on, so that another loss is of that one.

    Args:
        most: How many workers may be lost with a closure; None for any number.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._workers: dict[int, tuple[int, ...]] = {}

    def __contains__(self, closure: int) -> bool:
        return closure in self._workers

    def __bool__(self) -> bool:
        return bool(self._workers)

    def blame(self, closures: Collection[int], worker: int) -> Mapping[int, tuple[int, ...]]:
        """Take note that a worker was lost with what it had.

        Returns:
            The closures that must not run again, each with the workers that were lost with it.
        """
        if self._most is None:
            return {}
        for closure in closures:
            self._workers[closure] = (*self._workers.get(closure, ()), worker)
        return {
            closure: self._workers.pop(closure)
            for closure in closures
            if len(self._workers[closure]) >= self._most
        }

    def clear(self, *closures: int) -> None:
        """Forget closures that have ended."""
        if self._workers:
            for closure in closures:
                self._workers.pop(closure, None)

    def may_join(self, closure: int, load: Mapping[int, None]) -> bool:
        """Return whether a worker may have a closure behind those that it has."""
        return closure not in self._workers and next(iter(load)) not in self._workers
