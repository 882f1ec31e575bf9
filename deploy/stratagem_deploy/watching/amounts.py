"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterator

from stratagem_proto.v1.status_pb2 import Histogram

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def amount(nbytes: float) -> str:
    """Return bytes with about three digits, for instance "1.5 MiB"."""
    power = 0
    while nbytes >= 1024 and power < len(_UNITS) - 1:
        nbytes, power = nbytes / 1024, power + 1
    digits = 1 if power and nbytes < 100 else 0
    return f"{nbytes:.{digits}f} {_UNITS[power]}"


def span(seconds: float) -> str:
    """Return a time in the largest unit that leaves a number above one."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def total(histogram: Histogram) -> int:
    """Return how many there were."""
    return sum(histogram.counts)


def mean(histogram: Histogram) -> float | None:
    """Return their mean; None if there were none."""
    number = total(histogram)
    return histogram.sum / number if number else None


def quantile(histogram: Histogram, share: float) -> float | None:
    """Return the upper bound of a quantile's bucket; None if there were none.

    What is above all bounds counts as the last one.
    """
    wanted = share * total(histogram)
    for bound, number in _running(histogram):
        if number >= wanted > 0:
            return bound
    return None


def _running(histogram: Histogram) -> Iterator[tuple[float, int]]:
    bounds, number = [*histogram.bounds, *histogram.bounds[-1:]], 0
    for bound, count in zip(bounds, histogram.counts, strict=True):
        number += count
        yield bound, number
