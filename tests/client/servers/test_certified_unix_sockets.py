"""How long the certificate counts that a client of the same machine has shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import pytest
import torch

from stratagem._ps_client.connection import Connection
from stratagem._ps_client.session import Identity
from stratagem_proto.errors import UnauthenticatedError
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.certificates.folder import shown_certificate
from stratagem_rpc.certificates.presented import presenting
from stratagem_rpc.channel import AUTO, GRPC, TCP, TRANSPORT_VARIABLE, UNIX
from tests.certified import Certified, certified, serial
from tests.client.connections import add, connected, make, value_of
from tests.waiting import eventually

CHIEF = Identity(ROLE_CHIEF, "worker", 0)


@pytest.fixture
def authority(tmp_path: Path) -> Certified:
    return certified(tmp_path / "prod")


@contextmanager
def on_one_machine(
    authority: Certified, shown: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Connection]:
    """A session over a Unix socket, with the variable "v" of two zeros."""
    monkeypatch.setenv(TRANSPORT_VARIABLE, way)
    settings = ServerSettings(tls=authority.of("ps:0"))
    with (
        ParameterServer(settings) as server,
        presenting(shown),
        connected(server.address, CHIEF) as connection,
    ):
        make(connection, "v", torch.zeros(2))
        assert connection.route.way not in (TCP, GRPC)
        yield connection


@pytest.mark.parametrize("way", [AUTO, UNIX])
def test_a_denied_certificate_counts_no_more_on_a_unix_socket(
    authority: Certified, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = authority.of("worker:0=chief")
    with on_one_machine(authority, shown, way, monkeypatch) as connection:
        (authority.folder / "ps-0" / "denied.txt").write_text(f"{serial(shown):x}\n")
        with pytest.raises(UnauthenticatedError, match="is among the denied ones"):
            add(connection, "v", torch.ones(2))


def test_a_unix_socket_outlasts_the_certificate_of_its_session(
    authority: Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = authority.of("worker:0=chief", days=8 / 86_400)
    ends = shown_certificate((shown / "tls.crt").read_bytes()).ends
    with on_one_machine(authority, shown, UNIX, monkeypatch) as connection:
        eventually(lambda: datetime.now(timezone.utc) >= ends)
        add(connection, "v", torch.ones(2))
        assert value_of(connection, "v", torch.zeros(2)).tolist() == [1, 1]
