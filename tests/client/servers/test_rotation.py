"""Certificates that are exchanged while requests go on."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from cryptography import x509

from stratagem._ps_client.connection import Connection
from stratagem._ps_client.session import Identity
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.certificates.presented import presenting
from tests.certified import certified, serial
from tests.client.connections import add, connected, make, value_of

CHIEF = Identity(ROLE_CHIEF, "worker", 0)


def shown(address: str, certificates: Path) -> int:
    """Return the serial number of the certificate that a server shows whoever connects now."""
    context = ssl.create_default_context(cafile=certificates / "ca.crt")
    context.load_cert_chain(certificates / "tls.crt", certificates / "tls.key")
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname="0.ps.prod.stratagem") as encrypted,
    ):
        found = encrypted.getpeercert(binary_form=True)
    assert found is not None
    return x509.load_der_x509_certificate(found).serial_number


class Load:
    """Adds ones, one after the other, in a thread of its own."""

    def __init__(self, connection: Connection) -> None:
        self.added = 0
        self._connection, self._enough = connection, threading.Event()
        self.errors = list[Exception]()

    def _add(self) -> None:
        try:
            while not self._enough.is_set():
                add(self._connection, "v", torch.ones(1))
                self.added += 1
        except Exception as error:
            self.errors.append(error)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        thread = threading.Thread(target=self._add)
        thread.start()
        try:
            yield
        finally:
            self._enough.set()
            thread.join()


@pytest.mark.parametrize(
    ("way", "exchanges"),
    [
        ("tcp", 20),
        pytest.param("tcp", 100, marks=pytest.mark.long),
        pytest.param("grpc", 100, marks=pytest.mark.long),
    ],
)
def test_exchanged_certificates_count_for_the_next_handshake_and_break_nothing(
    tmp_path: Path, way: str, exchanges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATAGEM_TRANSPORT", way)
    authority = certified(tmp_path)
    of_server, of_chief = authority.of("ps:0"), authority.of("worker:0=chief")
    settings = ServerSettings(tls=of_server)
    with (
        ParameterServer(settings) as server,
        presenting(of_chief),
        connected(server.address, CHIEF) as connection,
    ):
        make(connection, "v", torch.zeros(1))
        load = Load(connection)
        with load.going_on():
            for _ in range(exchanges):
                authority.of("ps:0")
                assert shown(server.address, of_chief) == serial(of_server)
                authority.of("worker:0=chief")
                # A client that connects now has its sessions with the certificates of now.
                with connected(server.address, CHIEF) as another:
                    add(another, "v", torch.ones(1))
                    assert another.route.way == way
        assert not load.errors
        assert load.added > exchanges
        assert connection.route.way == way
        assert value_of(connection, "v", torch.zeros(1)).item() == load.added + exchanges
