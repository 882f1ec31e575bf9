"""Connections on which both ends show certificates, and those that one of them refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
import torch

from stratagem._ps_client.session import Identity
from stratagem._ps_client.survey import Effort, ServerCalls
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF, ROLE_OPERATOR
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.certificates.presented import TLS_VARIABLE, presenting
from tests.certified import Certified, certified
from tests.client.connections import add, connected, make, value_of

CHIEF = Identity(ROLE_CHIEF, "worker", 0)


@pytest.fixture
def authority(tmp_path: Path) -> Certified:
    return certified(tmp_path / "prod")


@pytest.fixture
def chief(authority: Certified) -> Path:
    return authority.of("worker:0=chief")


@pytest.fixture
def server(authority: Certified) -> Iterator[ParameterServer]:
    with ParameterServer(ServerSettings(tls=authority.of("ps:0"))) as running:
        yield running


@pytest.mark.parametrize("way", ["unix", "tcp", "grpc"])
def test_ends_that_know_each_other_go_on(
    server: ParameterServer, chief: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATAGEM_TRANSPORT", way)
    with presenting(chief), connected(server.address, CHIEF) as connection:
        make(connection, "v", torch.zeros(3))
        add(connection, "v", torch.ones(3))
        assert value_of(connection, "v", torch.zeros(3)).tolist() == [1, 1, 1]
        assert connection.route.way == way


def test_the_environment_says_what_to_show(
    server: ParameterServer, chief: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TLS_VARIABLE, str(chief))
    with connected(server.address, CHIEF) as connection:
        assert connection.open()


def refusal(address: str, shown: Path | None, error: type[Exception], says: str) -> None:
    showing = presenting(shown) if shown else nullcontext()
    with (
        showing,
        connected(address, CHIEF, connect=1.0) as connection,
        pytest.raises(error, match=says),
    ):
        connection.open()


def test_a_server_hangs_up_on_who_shows_no_certificate(server: ParameterServer) -> None:
    refusal(server.address, None, UnavailableError, "check STRATAGEM_TLS of this process")


def test_a_server_hangs_up_on_who_was_certified_by_others(
    server: ParameterServer, chief: Path, tmp_path: Path
) -> None:
    foreign = certified(tmp_path / "foreign").of("worker:0=chief")
    both = (foreign / "ca.crt").read_bytes() + (chief / "ca.crt").read_bytes()
    (foreign / "ca.crt").write_bytes(both)
    refusal(server.address, foreign, UnavailableError, "that its authority has not signed")


def test_a_client_refuses_a_server_that_others_have_certified(
    server: ParameterServer, tmp_path: Path
) -> None:
    foreign = certified(tmp_path / "foreign").of("worker:0=chief")
    says = "OpenSession on /job:ps/task:0 at .* no authority in ca.crt of this process has signed"
    refusal(server.address, foreign, UnauthenticatedError, says)


def test_a_client_refuses_another_task_in_place_of_the_server(
    authority: Certified, chief: Path
) -> None:
    for task in ("ps:1", "worker:1=server"):
        folder = authority.of(task)
        job, _, index = task.partition("=")[0].partition(":")
        settings = ServerSettings(job=job, task=int(index), tls=folder)
        with ParameterServer(settings) as other:
            refusal(other.address, chief, UnauthenticatedError, "the certificate of another task")


def test_a_client_refuses_a_server_of_another_cluster(chief: Path, tmp_path: Path) -> None:
    folder = certified(tmp_path / "test", "test").of("ps:0")
    # Both clusters trust both authorities.
    both = (folder / "ca.crt").read_bytes() + (chief / "ca.crt").read_bytes()
    for each in (folder, chief):
        (each / "ca.crt").write_bytes(both)
    with ParameterServer(ServerSettings(tls=folder)) as other_server:
        refusal(other_server.address, chief, UnauthenticatedError, "of another task or cluster")


def test_a_client_with_a_certificate_refuses_a_server_without(chief: Path) -> None:
    with ParameterServer(ServerSettings()) as plain:
        says = "start the server with --tls, or leave STRATAGEM_TLS out"
        refusal(plain.address, chief, UnauthenticatedError, says)


def test_a_server_has_the_certificate_of_its_own_task(authority: Certified) -> None:
    says = r"is that of /job:ps/task:1 \(server\), and this server is /job:ps/task:0"
    with pytest.raises(InvalidArgumentError, match=says):
        ServerSettings(tls=authority.of("ps:1"))


def test_one_process_shows_one_certificate(authority: Certified, chief: Path) -> None:
    says = f"shows the certificates in {chief} already"
    with (
        presenting(chief),
        pytest.raises(FailedPreconditionError, match=says),
        presenting(authority.of("worker:1")),
    ):
        raise AssertionError("another one is shown")


def test_others_reach_a_server_with_certificates_and_no_token(authority: Certified) -> None:
    anywhere = "0.0.0.0:0"
    folder = authority.of("ps:0")
    ServerSettings(bind=anywhere, health_bind=anywhere, metrics_bind=anywhere, tls=folder)
    with pytest.raises(InvalidArgumentError, match="can be reached from other machines"):
        ServerSettings(metrics_bind=anywhere)
    with pytest.raises(InvalidArgumentError, match="give --tls with a folder"):
        ServerSettings(health_bind="0.0.0.0:0")


def test_a_task_moves_to_a_server_with_another_certificate_and_back(
    authority: Certified, chief: Path, tmp_path: Path
) -> None:
    arbiter = f"file:{tmp_path / 'arbiter'}"
    with ExitStack() as running:
        addresses = [
            running.enter_context(
                ParameterServer(
                    ServerSettings(task=task, tls=authority.of(f"ps:{task}"), arbiter=arbiter)
                )
            ).address
            for task in range(2)
        ]
        running.enter_context(presenting(chief))
        calls = ServerCalls(Identity(ROLE_OPERATOR))
        connection = running.enter_context(connected(addresses[0], CHIEF))
        make(connection, "v", torch.zeros(3))
        for number in (1, 0):
            assert calls.take(addresses[number], 0, Effort(20.0, 0)).primary.index == number
            add(connection, "v", torch.ones(3))
        assert value_of(connection, "v", torch.zeros(3)).tolist() == [2, 2, 2]
