"""Figures for Prometheus, and where they are asked for."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    make_wsgi_app,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stratagem_proto.v1.consistency_pb2 import WorkerClock
from stratagem_proto.v1.session_pb2 import Role
from stratagem_proto.v1.status_pb2 import (
    Budget,
    CheckpointStatus,
    GetStatusResponse,
    Histogram,
    ReaderServerStatus,
    WorkerServerStatus,
)
from stratagem_proto.v1.status_pb2 import ParameterServerStatus as Status
from stratagem_proto.v1.variable_pb2 import VariableKind
from stratagem_rpc.serving.pages import Page
from stratagem_rpc.serving.scrape_server import ScrapeServer
from stratagem_rpc.socket_server.listener import cannot_listen

if TYPE_CHECKING:
    from stratagem_rpc.certificates.folder import CertificateFolder

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


_KIND = ("kind",)
_REASON = ("reason",)
_WORKER = ("optimizer", "worker")


def of_parameter_server(status: Status, families: Families) -> Iterator[Metric]:
    """Yield the families that only a parameter server has."""
    yield from _variables(status, families)
    yield from _budgets(status, families)
    yield from _table_files(status, families)
    yield from _waits(status, families)
    yield from _workers(status, families)
    yield from _checkpoints(status.checkpoint, families)
    yield from _publications(status, families)
    yield families.number(
        "recorded_closures",
        "Changes recorded of scheduled functions that have not ended.",
        status.recorded_closures,
    )


def _variables(status: Status, families: Families) -> Iterator[Metric]:
    totals = [((_kind(total.kind),), total) for total in status.totals]
    yield families.gauge(
        "variables",
        "Variables that are hosted.",
        [(kind, total.count) for kind, total in totals],
        _KIND,
    )
    yield families.gauge(
        "variable_bytes",
        "Memory of variables; that of tables includes their index and their optimizers' state.",
        [(kind, total.bytes) for kind, total in totals],
        _KIND,
    )
    rows = sum(total.table_rows for total in status.totals)
    yield families.number("table_rows", "Rows that embedding tables have stored.", rows)


def _table_files(status: Status, families: Families) -> Iterator[Metric]:
    files, is_used = status.table_files, status.HasField("table_files")
    gauges: dict[str, tuple[str, float]] = {
        "table_resident_bytes": ("Bytes of memory for rows of tables.", files.resident.used),
        "table_resident_limit_bytes": ("The limit of that.", files.resident.limit),
        "table_row_bytes": ("Bytes of rows of tables, in memory or not.", files.row_bytes),
        "table_file_bytes": ("Bytes of the files of tables.", files.file_bytes),
        "table_free_bytes": ("Bytes that the disk of these files has left.", files.free_bytes),
        "table_disk_failed": ("Whether that disk has failed.", bool(files.failure)),
    }
    for name, (what, value) in gauges.items():
        yield families.number(name, what, value if is_used else None)
    counters: dict[str, tuple[str, float]] = {
        "table_found_rows": ("Rows that requests found in memory.", files.found_rows),
        "table_missed_rows": ("Rows that had to be read from files.", files.missed_rows),
        "table_lookups": ("Requests that asked for rows.", files.lookups),
        "table_reads": ("Reads of neighbouring pages.", files.reads),
        "table_read_bytes": ("Bytes of these reads.", files.read_bytes),
        "table_read_seconds": ("Seconds that these reads took.", files.read_seconds),
        "table_evicted_bytes": ("Bytes of rows that left memory.", files.evicted_bytes),
        "table_changed_bytes": ("Bytes of those that had changed.", files.changed_bytes),
        "table_written_bytes": ("Bytes that were written for these.", files.written_bytes),
    }
    for name, (what, value) in counters.items():
        yield families.counter(name, what, [((), value)] if is_used else [])


def _kind(kind: VariableKind) -> str:
    return VariableKind.Name(kind).removeprefix("VARIABLE_KIND_").lower()


def _budgets(status: Status, families: Families) -> Iterator[Metric]:
    room: Budget | None = status.room if status.HasField("room") else None
    yield families.number(
        "staged_bytes",
        "Bytes of requests until they are applied, and of answers until they are sent.",
        status.staged.used,
    )
    yield families.number(
        "staged_limit_bytes", "The limit of stratagem_staged_bytes.", status.staged.limit
    )
    yield families.number(
        "variable_limit_bytes",
        "The limit of the memory of variables, if --variable-bytes is given.",
        room.limit if room else None,
    )


def _waits(status: Status, families: Families) -> Iterator[Metric]:
    yield families.gauge(
        "waiting_requests",
        "Requests that wait for other tasks now.",
        [((wait.reason,), wait.waiting) for wait in status.waits],
        _REASON,
    )
    yield families.histogram(
        "wait_seconds",
        "How long requests have waited for other tasks.",
        [((wait.reason,), wait.seconds) for wait in status.waits],
        _REASON,
    )


def _workers(status: Status, families: Families) -> Iterator[Metric]:
    clocks = [*_clocks(status)]
    yield families.counter(
        "worker_steps",
        "The last step that a worker has finished or skipped.",
        [(labels, clock.finished) for labels, clock in clocks],
        _WORKER,
    )
    yield families.gauge(
        "worker_present",
        "1 while a worker has an open session, 0 once it is gone.",
        [(labels, not clock.gone) for labels, clock in clocks],
        _WORKER,
    )
    yield families.bit_length_histogram(
        "staleness_steps",
        "Steps that others finished while a worker took one.",
        [(labels, clock.staleness) for labels, clock in clocks],
        _WORKER,
    )
    yield families.counter(
        "dropped_contributions",
        "Contributions that came too late for their step.",
        [(labels, clock.dropped) for labels, clock in clocks],
        _WORKER,
    )


def _clocks(status: Status) -> Iterator[tuple[Labels, WorkerClock]]:
    for group in status.groups:
        for clock in group.workers:
            worker = clock.task.removeprefix("/job:").replace("/task:", ":")
            yield (group.group, worker), clock


def _checkpoints(status: CheckpointStatus, families: Families) -> Iterator[Metric]:
    known = status if status.HasField("age_seconds") else None
    yield families.counter("checkpoints", "Parts of checkpoints written.", [((), status.saves)])
    yield families.counter(
        "checkpoint_failures",
        "Parts of checkpoints that could not be written.",
        [((), status.failures)],
    )
    yield families.number(
        "checkpoint_age_seconds",
        "Time since the last part was written; absent before the first part of this run.",
        known.age_seconds if known else None,
    )
    yield families.number(
        "checkpoint_bytes",
        "Size of the last part that was written.",
        known.bytes if known else None,
    )
    yield families.number(
        "checkpoint_seconds",
        "How long writing the last part took.",
        known.seconds if known else None,
    )


def _publications(status: Status, families: Families) -> Iterator[Metric]:
    known = status.publication if status.HasField("publication") else None
    yield families.number(
        "published_version",
        "The number of the last version; absent before the first.",
        known.version if known else None,
    )
    yield families.number(
        "published_age_seconds",
        "Time since the last version was published; absent before the first.",
        known.age_seconds if known else None,
    )
    yield families.number(
        "published_bytes",
        "Bytes of increments that are kept for readers.",
        known.kept.used if known else None,
    )


def of_worker_server(status: WorkerServerStatus, families: Families) -> Iterator[Metric]:
    """Yield the families that only a worker server has."""
    yield families.number("closures_running", "Functions that run now: 0 or 1.", status.running)
    yield families.number("closures_queued", "Functions that wait to run.", status.queued)
    yield families.counter(
        "closures",
        "Functions that have ended, by outcome.",
        [((outcome,), count) for outcome, count in sorted(status.ended.items())],
        ("outcome",),
    )
    yield families.histogram("closure_seconds", "How long functions ran.", [((), status.seconds)])
    yield families.number(
        "staying_results", "Large results that stay on this worker.", status.staying_results
    )
    yield families.number(
        "staying_result_bytes", "Bytes of these results.", status.staying_result_bytes
    )
    yield families.number("gpus", "GPUs that functions can use.", status.gpus)


def of_reader_server(status: ReaderServerStatus, families: Families) -> Iterator[Metric]:
    """Yield the families that only a server has which answers from what is published."""
    known = status if status.HasField("age_seconds") else None
    yield families.number(
        "version",
        "The version that is answered of; absent before the first.",
        known.version if known else None,
    )
    yield families.number(
        "version_age_seconds",
        "Time since that was published.",
        known.age_seconds if known else None,
    )
    yield families.number(
        "source_lost",
        "Whether what it follows cannot be followed at present: 0 or 1.",
        float(bool(status.source_problem)),
    )
    yield families.counter("versions", "Versions that were come to.", [((), status.versions)])
    yield families.counter(
        "whole_versions", "Versions of these that were read whole.", [((), status.wholes)]
    )
    yield families.counter(
        "looked_up_rows", "Rows that were answered with.", [((), status.looked_up_rows)]
    )
    yield families.number("replica_rows", "Rows of tables that are here.", status.table_rows)
    yield families.number("replica_bytes", "Bytes of all values here.", status.bytes)


_METHOD = ("method",)


def of_any_server(status: GetStatusResponse, families: Families) -> Iterator[Metric]:
    """Yield the families of a server that do not depend on its kind."""
    yield families.number("uptime_seconds", "Time since the server started.", status.uptime_seconds)
    yield families.gauge(
        "sessions", "Clients with an open session.", _by_role(status).items(), ("role",)
    )
    yield from _requests(status, families)


def _by_role(status: GetStatusResponse) -> dict[tuple[str], int]:
    roles = Counter(session.role for session in status.sessions)
    return {
        (Role.Name(role).removeprefix("ROLE_").lower(),): number for role, number in roles.items()
    }


def _requests(status: GetStatusResponse, families: Families) -> Iterator[Metric]:
    methods = status.methods
    yield families.counter(
        "requests",
        "Requests that have ended, by the status that they ended with.",
        [
            ((each.method, code), count)
            for each in methods
            for code, count in sorted(each.ended.items())
        ],
        ("method", "code"),
    )
    yield families.gauge(
        "requests_in_progress",
        "Requests that are being answered.",
        [((each.method,), each.in_progress) for each in methods],
        _METHOD,
    )
    yield families.histogram(
        "request_seconds",
        "How long requests took; a push is an Update, a pull a Read.",
        [((each.method,), each.seconds) for each in methods],
        _METHOD,
    )
    yield families.histogram(
        "received_bytes",
        "Bytes of tensors that a request brought.",
        [((each.method,), each.received_bytes) for each in methods],
        _METHOD,
    )
    yield families.histogram(
        "sent_bytes",
        "Bytes of tensors that a request was answered with.",
        [((each.method,), each.sent_bytes) for each in methods],
        _METHOD,
    )


_RECENT_SECONDS = 1.0

Ask = Callable[[], GetStatusResponse]
"""Returns the status of the server; called in threads of the endpoint."""


class MetricsEndpoint:
    """Answers each scrape with the present figures of the server.

    Attributes:
        address: The "host:port" where it answers.
    """

    def __init__(self, bind: str, ask: Ask, certificates: CertificateFolder | None = None) -> None:
        """Bind its port and answer from now on.

        Args:
            bind: The "host:port" to listen on.
            ask: Returns the status of the server.
            certificates: What to show; only whoever is certified is answered then.

        Raises:
            UnavailableError: The port is taken, or the host is not this machine's.
        """
        # A registry of its own, because servers in one process must not mix their figures.
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        registry.register(_Status(Recent(ask)))
        host, _, port = bind.rpartition(":")
        try:
            self._server = ScrapeServer(host.strip("[]"), int(port), certificates)
        except OSError as error:
            raise cannot_listen(bind) from error
        self._figures = make_wsgi_app(registry)
        self._server.set_app(self._figures)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics")
        self._thread.daemon = True
        self._thread.start()
        self.address = f"{host}:{self._server.server_port}"

    def show(self, page: Page) -> None:
        """Answer with a page from now on, and with figures only at /metrics."""
        self._server.set_app(_Paths(self._figures, page))

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Paths:
    """Has figures and a page answer, each at its own paths.

    Args:
        figures: The WSGI application of the figures.
        page: That of the page.
    """

    def __init__(self, figures: Callable[..., Iterable[bytes]], page: Page) -> None:
        self._figures, self._page = figures, page

    def __call__(
        self, environ: Mapping[str, Any], start_response: Callable[..., object]
    ) -> Iterable[bytes]:
        is_scrape = environ["PATH_INFO"].rstrip("/") == "/metrics"
        return (self._figures if is_scrape else self._page)(environ, start_response)


class Recent:
    """Asks for the status at most once a second, however many there are who ask.

    Args:
        ask: Returns the status.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask, self._asking = ask, threading.Lock()
        self._asked_at, self._answer = -math.inf, GetStatusResponse()

    def __call__(self) -> GetStatusResponse:
        """Return a status that is at most a second old."""
        with self._asking:
            if time.monotonic() - self._asked_at >= _RECENT_SECONDS:
                self._answer = self._ask()
                self._asked_at = time.monotonic()
            return self._answer


class _Status(Collector):
    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that registering does not ask for the status."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        return families_of(self._ask())


def families_of(status: GetStatusResponse) -> Iterator[Metric]:
    """Yield the metric families of a server with this status."""
    families = Families(f"{status.task.job}:{status.task.index}")
    yield from of_any_server(status, families)
    if status.HasField("parameter_server"):
        yield from of_parameter_server(status.parameter_server, families)
    elif status.HasField("reader_server"):
        yield from of_reader_server(status.reader_server, families)
    else:
        yield from of_worker_server(status.worker_server, families)
