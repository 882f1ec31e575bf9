"""How measures have changed in the last hour, within a bounded memory."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, TypeAlias

HOUR_SECONDS = 3600.0

EVERY_SECONDS = 5.0
"""The least time between two points."""

# Charts come from here, but for those of a program's own scalars.
_MOST_CHARTS, _MOST_SERIES = 40, 16

Measures: TypeAlias = Mapping[str, Mapping[str, float]]
"""Values of one moment: of each chart, those of its series by name."""


class Curves:
    """The points of the last hour.

    Args:
        every: Seconds between two points.
    """

    def __init__(self, every: float) -> None:
        length = max(2, math.ceil(HOUR_SECONDS / every))
        self._points: deque[tuple[int, float, Measures]] = deque(maxlen=length)
        self._number = 0

    def add(self, time: float, measures: Measures) -> None:
        """Add a point.

        Args:
            time: Seconds since 1970.
            measures: The values; those above the bounds of this memory are left out.
        """
        self._number += 1
        kept = {
            chart: dict(list(series.items())[:_MOST_SERIES])
            for chart, series in list(measures.items())[:_MOST_CHARTS]
        }
        self._points.append((self._number, time, kept))

    def since(self, number: int) -> dict[str, Any]:
        """Return the points after the one of a number, as JSON has them.

        Args:
            number: That of the last point that is known; 0 for all points.

        Returns:
            "number" of the last point; "first" that of the oldest one kept; "times"; and "charts":
            for each series a value for each time, None where it has none.
        """
        points = [point for point in self._points if point[0] > number]
        times = [round(time, 1) for _, time, _ in points]
        names = {
            chart: dict.fromkeys(
                name for _, _, measures in points for name in measures.get(chart, ())
            )
            for chart in dict.fromkeys(chart for _, _, measures in points for chart in measures)
        }
        charts = {
            chart: {
                name: [_short(measures.get(chart, {}).get(name)) for _, _, measures in points]
                for name in series
            }
            for chart, series in names.items()
        }
        first = self._points[0][0] if self._points else 0
        return {"number": self._number, "first": first, "times": times, "charts": charts}


def _short(value: float | None) -> float | None:
    """Return a value with the digits that can be seen; None for what is no number."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")
