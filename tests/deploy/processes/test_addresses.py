"""A reserved address is free for its server and for nobody else."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings


@pytest.fixture
def reserved() -> Iterator[str]:
    with contextlib.closing(ReservedAddress()) as address:
        yield str(address)


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.partition(":")
    return host, int(port)


def test_a_server_binds_a_reserved_address_again_and_again(reserved: str) -> None:
    for _ in range(2):
        with ParameterServer(ServerSettings(bind=reserved)) as server:
            assert server.address == reserved


def test_nobody_answers_at_a_reserved_address(reserved: str) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(host_and_port(reserved))


def test_a_reserved_address_is_refused_to_a_stranger(reserved: str) -> None:
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(host_and_port(reserved))
