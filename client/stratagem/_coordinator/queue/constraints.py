"""What keeps closures from running: workers lost with them, and inputs that they lack."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping


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


class UnmetInputs:
    """Which closures wait for which."""

    def __init__(self) -> None:
        self._inputs: dict[int, set[int]] = {}
        self._waiting: defaultdict[int, list[int]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._inputs)

    def add(self, closure: int, inputs: Iterable[int]) -> None:
        """Let a closure wait for at least one other."""
        self._inputs[closure] = set(inputs)
        for needed in self._inputs[closure]:
            self._waiting[needed].append(closure)

    def meet(self, value: int) -> Iterator[int]:
        """Yield the closures that waited for nothing but this value."""
        for closure in self._waiting.pop(value, ()):
            # It may have failed by another input.
            unmet = self._inputs.get(closure, set())
            unmet.discard(value)
            if not unmet and self._inputs.pop(closure, None) is not None:
                yield closure

    def fail(self, value: int) -> Iterator[int]:
        """Yield the closures that will never have all inputs without this value."""
        for closure in self._waiting.pop(value, ()):
            if self._inputs.pop(closure, None) is not None:
                yield closure
                yield from self.fail(closure)

    def clear(self) -> list[int]:
        """Forget all closures and return them."""
        closures = [*self._inputs]
        self._inputs.clear()
        self._waiting.clear()
        return closures
