"""The address of a server that has ended, which somebody else has taken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stratagem._ps_client.connection import Connection
from stratagem._ps_client.session import Identity
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_proto.errors import UnauthenticatedError, UnavailableError
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.certificates.presented import presenting
from tests.certified import certified
from tests.client.connections import add, connected, make, value_of
from tests.impostors import Impostor
from tests.waiting import eventually

CHIEF, ONES = Identity(ROLE_CHIEF, "worker", 0), torch.ones(3)


def is_believed(connection: Connection) -> bool:
    """Whether the connection has noticed that somebody else answers."""
    try:
        value_of(connection, "v", ONES)
    except UnauthenticatedError:
        return False
    return True


@pytest.mark.parametrize("way", ["unix", "tcp", "grpc"])
def test_a_session_goes_on_with_no_other_server_at_the_address(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATAGEM_TRANSPORT", way)
    authority, folder = certified(tmp_path / "prod"), tmp_path / "state"
    folder.mkdir()
    with (
        ReservedAddress() as place,
        presenting(authority.of("worker:0=chief")),
        connected(str(place), CHIEF, connect=1.0) as connection,
    ):
        address = str(place)
        settings = ServerSettings(
            address, tls=authority.of("ps:0"), durability="log", durability_folder=str(folder)
        )
        impostor, server = Impostor(), ParameterServer(settings)
        server.start()
        make(connection, "v", torch.zeros(3))
        server.stop(grace=0)
        with (
            impostor.listening(address),
            pytest.raises((UnauthenticatedError, UnavailableError)),
        ):
            add(connection, "v", ONES)
        assert impostor.received == []
        # The server has what it had, and the session goes on with it.
        with ParameterServer(settings):
            eventually(lambda: is_believed(connection))
            assert value_of(connection, "v", ONES).tolist() == [0, 0, 0]
            add(connection, "v", ONES)
            assert value_of(connection, "v", ONES).tolist() == [1, 1, 1]
