"""A progress bar that shows the figures of a training."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

from tqdm.auto import tqdm

from stratagem._core.scalars import Scalars
from stratagem.consistency import ConsistencyReport, mean_staleness
from stratagem_proto.errors import StratagemError

_Element = TypeVar("_Element")
Figures = Callable[[], str]
"""Returns what a bar shows behind its rate."""

_LOOK_SECONDS = 2.0

if TYPE_CHECKING:
    _Bar = tqdm
else:
    # Of the class in notebooks nobody knows an element type.
    class _Bar(tqdm):
        def __class_getitem__(cls, element):
            return cls


class ProgressBar(_Bar[_Element]):
    """A `tqdm` whose figures are asked for when it is shown, and only then.

    Args:
        data: What to go over.
        figures: Returns what to show behind the rate.
        total: How many steps there are; None if they are as many as `data` has, if it says.
        options: Further ones of `tqdm`.
    """

    def __init__(
        self, data: Iterable[_Element], figures: Figures, total: int | None, **options: Any
    ) -> None:
        self._figures = figures
        known = _length(data) if total is None else total
        super().__init__(total=known, **{"unit": " steps", **options})
        # Given to the constructor, it would be opened there and again by the loop.
        self.iterable = data

    @property
    def format_dict(self) -> dict[str, Any]:
        """What the bar is made of, whenever it is shown."""
        shown = cast("dict[str, Any]", super().format_dict)
        parts = [shown["postfix"], self._figures()]
        return {**shown, "postfix": ", ".join(part for part in parts if part)}


def figures_of(strategy: object, scalars: Scalars) -> Figures:
    """Return what a bar of a strategy shows."""
    reports = strategy.consistency_report if isinstance(strategy, _Reporting) else None
    staleness = Staleness(reports) if reports else None

    def line() -> str:
        figures = [f"{name}={value:.4g}" for name, value in scalars.latest().items()]
        stale = staleness.latest() if staleness else None
        if stale is not None:
            figures.append(f"staleness={stale:.2g}")
        return ", ".join(figures)

    return line


@runtime_checkable
class _Reporting(Protocol):
    """A strategy that knows what holds its workers together."""

    def consistency_report(self) -> dict[str, ConsistencyReport]: ...


class Staleness:
    """How stale the updates of a cluster were between the last two looks at it.

    Args:
        report: Asks a server.
        every: Seconds between two looks.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        report: Callable[[], Mapping[str, ConsistencyReport]],
        every: float = _LOOK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report, self._every, self._clock = report, every, clock
        # The thread in which tqdm shows bars of loops that stand still must not wait for a server.
        self._thread = threading.get_ident()
        self._looked = clock()
        self._counts: Counter[int] | None = None
        self._mean: float | None = None

    def latest(self) -> float | None:
        """Return the mean in steps, after a look if it is time; None before the second look."""
        now = self._clock()
        if now - self._looked >= self._every and threading.get_ident() == self._thread:
            self._looked = now
            self._look()
        return self._mean

    def _look(self) -> None:
        try:
            reports = self._report()
        except StratagemError:
            return  # The loop meets the same error where it needs the server.
        counts: Counter[int] = Counter()
        for report in reports.values():
            for worker in report.workers.values():
                counts.update(worker.staleness)
        if self._counts is not None:
            self._mean = mean_staleness(counts, self._counts)
        self._counts = counts


def _length(data: Iterable[object]) -> int | None:
    try:
        return len(data) if isinstance(data, Sized) else None
    except TypeError:  # A loader of a stream has the method, and no length.
        return None
