"""The figures of a server: histograms and counts of its calls.

Counting costs a few additions. Messages are made only when somebody asks for the figures.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from functools import cache
from time import perf_counter

from stratagem_proto.v1 import status_pb2 as pb

SECONDS = tuple(number * 10.0**power for power in range(-4, 2) for number in (1, 2.5, 5))
"""Bounds of 100 µs to 50 s."""

BYTES = tuple(float(1 << power) for power in range(10, 33, 2))
"""Bounds of 1 KiB to 4 GiB."""


class Histogram:
    """A histogram.

    Args:
        bounds: The upper bounds of the buckets in ascending order. One more bucket counts the
            values above the last bound.
    """

    __slots__ = ("_bounds", "_counts", "_empty", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds, self._empty = bounds, _empty(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def message(self) -> pb.Histogram | None:
        """Return the message that describes it; None if nothing was observed."""
        if not any(self._counts):
            return None
        # 1.3 µs, and 5.6 µs with bounds that are numbers of Python.
        message = pb.Histogram()
        message.CopyFrom(self._empty)
        message.counts.extend(self._counts)
        message.sum = self._sum
        return message


@cache
def _empty(bounds: tuple[float, ...]) -> pb.Histogram:
    return pb.Histogram(bounds=bounds)


class Calls:
    """The figures of the calls of one RPC; used on the event loop only.

    Attributes:
        received: The sizes of tensors that were received, of calls that had any.
        sent: The sizes of tensors that were sent, of calls that had any.
    """

    __slots__ = ("_ended", "_in_progress", "_seconds", "received", "sent")

    def __init__(self) -> None:
        self._in_progress = 0
        self._ended: Counter[str] = Counter()
        self._seconds = Histogram(SECONDS)
        self.received, self.sent = Histogram(BYTES), Histogram(BYTES)

    def begin(self) -> float:
        """Count a call that begins; return the time of its beginning, for `end`."""
        self._in_progress += 1
        return perf_counter()

    def end(self, began: float, code: str) -> None:
        """Count a call that has ended, with the name of its status code."""
        self._in_progress -= 1
        self._ended[code] += 1
        self._seconds.observe(perf_counter() - began)

    @property
    def answered(self) -> int:
        """The number of calls that have ended."""
        return sum(self._ended.values())

    def status(self, method: str) -> pb.MethodStatus:
        """Return the message that describes the calls, under the name of the RPC."""
        return pb.MethodStatus(
            method=method,
            in_progress=self._in_progress,
            ended=self._ended,
            seconds=self._seconds.message(),
            received_bytes=self.received.message(),
            sent_bytes=self.sent.message(),
        )


class Figures:
    """The figures of a server's calls, by RPC."""

    def __init__(self) -> None:
        self._calls: dict[str, Calls] = {}

    def calls(self, message: str) -> Calls:
        """Return the figures of an RPC, by the name of the first message of its request."""
        found = self._calls.get(message)
        if found is None:
            found = self._calls[message] = Calls()
        return found

    def answered(self, message: str) -> int:
        """Return how many calls of an RPC have ended; the message is as in `calls`."""
        found = self._calls.get(message)
        return found.answered if found is not None else 0

    def methods(self) -> Iterator[pb.MethodStatus]:
        """Yield messages that describe all RPCs that were called, ordered by name."""
        for message, calls in sorted(self._calls.items()):
            method = message.removesuffix("Request").removesuffix("Header")
            yield calls.status(method)
