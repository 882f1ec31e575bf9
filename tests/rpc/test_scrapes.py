"""The port of figures, when strangers connect to it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from stratagem_proto.v1.session_pb2 import Task
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.certificates.identity import server_name
from stratagem_rpc.serving.metrics import MetricsEndpoint, Recent
from stratagem_rpc.serving.scrape_server import MOST_CONNECTIONS
from tests.certified import certified, serial
from tests.waiting import eventually

ANYWHERE = "127.0.0.1:0"
STRANGERS = 200


def status() -> GetStatusResponse:
    return GetStatusResponse(task=Task(job="ps"), uptime_seconds=7)


@pytest.fixture
def address() -> Iterator[str]:
    endpoint = MetricsEndpoint(ANYWHERE, status)
    yield endpoint.address
    endpoint.stop()


def scraped(address: str, context: ssl.SSLContext | None = None) -> str:
    scheme = "https" if context else "http"
    with urlopen(f"{scheme}://{address}/metrics", timeout=30, context=context) as response:
        return str(response.read().decode())


def test_strangers_that_say_nothing_neither_take_threads_nor_stop_scrapes(address: str) -> None:
    host, port = address.split(":")
    before = threading.active_count()
    with ExitStack() as opened:
        for _ in range(STRANGERS):
            stranger = opened.enter_context(socket.create_connection((host, int(port)), 10))
            stranger.sendall(b"GET /metrics HTTP/1.0\r\nX-Slow: ")
        assert "stratagem_uptime_seconds" in scraped(address)
        eventually(lambda: threading.active_count() - before <= 20)
        assert "stratagem_uptime_seconds" in scraped(address)


def test_many_who_come_at_once_take_few_threads(address: str) -> None:
    host, port = address.split(":")
    before, most = threading.active_count(), 0
    with ExitStack() as opened:
        for _ in range(900):
            opened.enter_context(socket.create_connection((host, int(port)), 10))
            most = max(most, threading.active_count())
        assert most - before <= MOST_CONNECTIONS
        assert "stratagem_uptime_seconds" in scraped(address)
        assert threading.active_count() - before <= MOST_CONNECTIONS


def test_threads_end_with_the_endpoint() -> None:
    before = threading.active_count()
    endpoint = MetricsEndpoint(ANYWHERE, status)
    host, port = endpoint.address.split(":")
    with ExitStack() as opened:
        for _ in range(3):
            opened.enter_context(socket.create_connection((host, int(port)), 10))
        assert "stratagem_uptime_seconds" in scraped(endpoint.address)
        endpoint.stop()
        eventually(lambda: threading.active_count() <= before)


def test_many_scrapes_at_once_ask_the_server_once() -> None:
    asked = list[int]()

    def ask() -> GetStatusResponse:
        asked.append(1)
        return status()

    recent = Recent(ask)
    threads = [threading.Thread(target=recent) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Two, if a second has passed meanwhile.
    assert 1 <= len(asked) <= 2


def context(folder: Path | None, authorities: Path) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=authorities / "ca.crt")
    made.check_hostname = False
    if folder is not None:
        made.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return made


def test_prometheus_expects_one_name_of_all_servers(tmp_path: Path) -> None:
    authority = certified(tmp_path / "prod")
    observer, folder = authority.of("observer"), authority.of("ps:0")
    checking = context(observer, observer)
    checking.check_hostname = True
    with ParameterServer(ServerSettings(metrics_bind=ANYWHERE, tls=folder)) as server:
        host, port = server.metrics_address.split(":")
        for name, is_known in (server_name("prod"), True), (host, False):
            refused = nullcontext() if is_known else pytest.raises(ssl.SSLCertVerificationError)
            with refused, socket.create_connection((host, int(port)), 30) as plain:
                checking.wrap_socket(plain, server_hostname=name).close()


def test_figures_are_for_those_who_are_certified(tmp_path: Path) -> None:
    authority = certified(tmp_path / "prod")
    folder, observer = authority.of("ps:0"), authority.of("observer")
    foreign = certified(tmp_path / "foreign").of("observer")
    with ParameterServer(ServerSettings(metrics_bind=ANYWHERE, tls=folder)) as server:
        address = server.metrics_address
        assert 'server="ps:0"' in scraped(address, context(observer, folder))
        for stranger in (None, foreign):
            with pytest.raises((URLError, ssl.SSLError, ConnectionError)):
                scraped(address, context(stranger, folder))
        with pytest.raises((URLError, ConnectionError)):
            scraped(address)
        # New certificates count for the next connection.
        authority.of("ps:0"), authority.of("observer")
        assert 'server="ps:0"' in scraped(address, context(observer, folder))
        (folder / "denied.txt").write_text(f"{serial(observer):x}\n")
        with pytest.raises((URLError, ssl.SSLError, ConnectionError)):
            scraped(address, context(observer, folder))
