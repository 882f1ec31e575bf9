"""The endpoint from which Prometheus reads the figures of a server."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    make_wsgi_app,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stratagem_proto.serving.metrics.any_server import of_any_server
from stratagem_proto.serving.metrics.families import Families
from stratagem_proto.serving.metrics.parameter_server import of_parameter_server
from stratagem_proto.serving.metrics.scrape_server import ScrapeServer
from stratagem_proto.serving.metrics.worker_server import of_worker_server
from stratagem_proto.serving.pages import Page
from stratagem_proto.sockets.server.listening import cannot_listen
from stratagem_proto.v1.status_pb2 import GetStatusResponse

if TYPE_CHECKING:
    from stratagem_proto.certificates.folder import CertificateFolder

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
    else:
        yield from of_worker_server(status.worker_server, families)
