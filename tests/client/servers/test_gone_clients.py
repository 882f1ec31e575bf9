"""Sessions of clients whose connections were closed, by the system or on the way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from stratagem import Variable
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import AUTO, GRPC, TCP, TRANSPORT_VARIABLE
from tests.client.clusters import Cluster
from tests.conftest import TOKEN
from tests.relays import Relay
from tests.waiting import eventually

pytestmark = pytest.mark.long

# Nothing here ends by it.
LEASE_SECONDS = 3600.0

PROGRAM = """
import sys
import torch
from stratagem import Variable
from tests.client.clusters import Cluster

strategy = Cluster([sys.argv[1]], num_workers=1).strategy()
with strategy.scope():
    variable = Variable(torch.zeros(2))
variable.assign_add(torch.ones(2))
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def serving(reconnect_seconds: float) -> Iterator[ParameterServer]:
    settings = ServerSettings(
        token=TOKEN, lease_seconds=LEASE_SECONDS, reconnect_seconds=reconnect_seconds
    )
    with ParameterServer(settings) as server:
        yield server


def sessions(server: ParameterServer) -> list[Session]:
    return [*server._state.ledger.opened()]


def attended(server: ParameterServer) -> int:
    return server._state.ledger._attended.total()


class Relayed(NamedTuple):
    """A client whose connections can be cut, once its session is attended.

    Attributes:
        server: The server.
        relay: What its connections go through.
        session: Its session.
        variable: Two zeros.
    """

    server: ParameterServer
    relay: Relay
    session: Session
    variable: Variable


@contextmanager
def relayed(reconnect_seconds: float) -> Iterator[Relayed]:
    with (
        serving(reconnect_seconds) as server,
        Relay(int(server.address.rpartition(":")[2])) as relay,
        Cluster([f"127.0.0.1:{relay.port}"], num_workers=1).strategy() as strategy,
    ):
        with strategy.scope():
            variable = Variable(torch.zeros(2))
        eventually(lambda: attended(server) == 1)
        (session,) = sessions(server)
        yield Relayed(server, relay, session, variable)


@pytest.mark.parametrize("way", [AUTO, TCP, GRPC])
def test_the_session_of_a_process_that_was_killed_ends_long_before_its_lease(
    way: str,
) -> None:
    environment = {**os.environ, TRANSPORT_VARIABLE: way}
    with (
        serving(reconnect_seconds=0.2) as server,
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, server.address],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as client,
    ):
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
        assert len(sessions(server)) == 1
        eventually(lambda: attended(server) == 1)
        client.kill()
        eventually(lambda: not sessions(server))


@pytest.mark.parametrize("way", [AUTO, TCP, GRPC])
def test_a_client_whose_connections_were_cut_goes_on_in_its_session(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, way)
    with relayed(reconnect_seconds=1.5) as (server, relay, session, variable):
        for count in range(1, 4):
            cuts = relay.cuts
            relay.break_off()
            assert relay.cuts > cuts
            eventually(lambda: not attended(server))
            eventually(lambda: attended(server) == 1)
            variable.assign_add(torch.ones(2))
            assert variable.numpy().tolist() == [count, count]
            assert [each is session for each in sessions(server)] == [True]


def test_a_client_that_cannot_be_attended_for_a_while_is_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with relayed(reconnect_seconds=1.0) as (server, relay, session, variable):
        monkeypatch.setenv("STRATAGEM_TLS", str(tmp_path / "away"))
        relay.break_off()
        eventually(lambda: not attended(server))
        heard = session.heard
        eventually(lambda: session.heard > heard + 1.0)
        monkeypatch.delenv("STRATAGEM_TLS")
        eventually(lambda: attended(server) == 1)
        variable.assign_add(torch.ones(2))
        assert variable.numpy().tolist() == [1, 1]


def test_a_client_that_leaves_is_attended_no_more() -> None:
    with serving(reconnect_seconds=LEASE_SECONDS) as server:
        with Cluster([server.address], num_workers=1).strategy() as strategy:
            with strategy.scope():
                Variable(torch.zeros(2))
            eventually(lambda: attended(server) == 1)
        eventually(lambda: not attended(server))
        assert not sessions(server)
