"""Closures that wait for values of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator


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
