"""Metric families, each sample of which is labelled with its server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from stratagem_proto.v1.status_pb2 import Histogram

Labels: TypeAlias = tuple[str, ...]

_PREFIX = "stratagem_"
_SERVER = "server"


class Families:
    """Makes the metric families of one server; a family exists even without samples.

    Args:
        server: The task, for instance "ps:0".
    """

    def __init__(self, server: str) -> None:
        self._server = server

    def gauge(
        self, name: str, what: str, samples: Iterable[tuple[Labels, float]], labels: Labels = ()
    ) -> Metric:
        """Return a gauge, a number that goes up and down."""
        family = GaugeMetricFamily(_PREFIX + name, what, labels=[_SERVER, *labels])
        for values, value in samples:
            family.add_metric([self._server, *values], value)
        return family

    def number(self, name: str, what: str, value: float | None) -> Metric:
        """Return a gauge without further labels; a value of None gives no sample."""
        return self.gauge(name, what, [] if value is None else [((), value)])

    def counter(
        self, name: str, what: str, samples: Iterable[tuple[Labels, float]], labels: Labels = ()
    ) -> Metric:
        """Return a counter, a number that only goes up until the server is restarted."""
        family = CounterMetricFamily(_PREFIX + name, what, labels=[_SERVER, *labels])
        for values, value in samples:
            family.add_metric([self._server, *values], value)
        return family

    def histogram(
        self,
        name: str,
        what: str,
        samples: Iterable[tuple[Labels, Histogram]],
        labels: Labels = (),
    ) -> Metric:
        """Return a histogram."""
        family = HistogramMetricFamily(_PREFIX + name, what, labels=[_SERVER, *labels])
        for values, found in samples:
            buckets = [*_cumulated(found.bounds, found.counts)]
            if buckets:
                family.add_metric([self._server, *values], buckets, found.sum)
        return family

    def bit_length_histogram(
        self,
        name: str,
        what: str,
        samples: Iterable[tuple[Labels, Sequence[int]]],
        labels: Labels,
    ) -> Metric:
        """Return a histogram, without a sum, of numbers that were counted by their bit length."""
        family = HistogramMetricFamily(_PREFIX + name, what, labels=[_SERVER, *labels])
        for values, counts in samples:
            bounds = [float((1 << bits) - 1) for bits in range(len(counts))]
            buckets = [*_cumulated(bounds, [*counts, 0])]
            family.add_metric([self._server, *values], buckets, None)
        return family


def _cumulated(bounds: Sequence[float], counts: Sequence[int]) -> Iterator[tuple[str, int]]:
    names = [*(f"{bound:.6g}" for bound in bounds), "+Inf"]
    return zip(names, accumulate(counts), strict=bool(counts))
