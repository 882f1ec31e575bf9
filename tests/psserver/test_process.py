"""The server as a process: its command line, its log and its end."""

from __future__ import annotations

import json
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import pytest
import torch

from stratagem_proto.errors import CancelledError, UnauthenticatedError, UnavailableError
from stratagem_proto.v1.variable_requests_pb2 import (
    ASSIGN_MODE_SET,
    AssignHeader,
    Assignment,
    AssignResponse,
)
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import open_channel
from tests.probes import NOT_SERVING, SERVING, health, health_at
from tests.psserver.process import PATIENCE, launch, serving
from tests.psserver.wire import SERVICE, RawClient, encoded
from tests.waiting import eventually

pytestmark = pytest.mark.cluster


def _refuses_a_newcomer(address: str) -> bool:
    with RawClient(address, "") as late:
        try:
            late.open()
        except UnavailableError:
            return True
        except CancelledError:
            # It came at the very moment; clients try again.
            return False
    return False


def test_sigterm_lets_running_requests_end_and_refuses_new_ones(
    tmp_path: Path,
) -> None:
    value = torch.ones(100_000)
    with (
        serving(tmp_path) as server,
        RawClient(server.address, "") as client,
        open_channel(server.health_address) as probe,
    ):
        client.open()
        client.create(w=torch.zeros_like(value))
        assert health(probe) == SERVING
        begun, refused = threading.Event(), threading.Event()

        def frames() -> Iterator[bytes]:
            item = Assignment(variable="w", mode=ASSIGN_MODE_SET, value=0)
            header = AssignHeader(key=client.key(), assignments=[item], tensors=[spec_of(value)])
            *first, last = encoded(header, [value], chunk_bytes=1 << 16)
            yield from first
            begun.set()
            refused.wait(PATIENCE)
            yield last

        assign: grpc.StreamUnaryMultiCallable[bytes, bytes]
        assign = client.channel.stream_unary(f"/{SERVICE}/Assign")
        call = assign.future(frames(), timeout=PATIENCE)
        begun.wait(PATIENCE)
        client.heartbeat()  # answered after what was sent before it has come
        server.send(signal.SIGTERM)
        eventually(lambda: health(probe) == NOT_SERVING)
        # Probes hear of it first, so that what comes at that moment may get in.
        eventually(lambda: _refuses_a_newcomer(server.address))
        refused.set()
        assert list(AssignResponse.FromString(call.result(PATIENCE)).versions) == [2]
        assert server.exit_code() == 0


def test_an_idle_server_exits_at_once_on_ctrl_c(tmp_path: Path) -> None:
    with serving(tmp_path, "--drain-seconds", "3600") as server:
        server.send(signal.SIGINT)
        assert server.exit_code() == 0


def test_the_log_is_one_json_object_a_line(tmp_path: Path) -> None:
    with serving(tmp_path, "--task", "3") as server:
        server.send(signal.SIGTERM)
        server.exit_code()
    entries = [json.loads(line) for line in server.log.splitlines()]
    events = [entry["event"] for entry in entries]
    assert events == ["serving", "ends with what it has", "stopped"]
    assert entries[0]["address"] == server.address
    assert entries[0]["task"] == "/job:ps/task:3"


def test_the_token_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("the cluster's secret\n")
    with serving(tmp_path, "--token-file", str(file)) as server:
        with RawClient(server.address, "the cluster's secret") as client:
            client.open()
        with (
            RawClient(server.address, "a guess by somebody") as client,
            pytest.raises(UnauthenticatedError),
        ):
            client.open()


@pytest.mark.parametrize("option", ["--token-file", "--checkpoint-key-file"])
def test_a_secret_that_others_may_read_is_warned_of(tmp_path: Path, option: str) -> None:
    file = tmp_path / "secret"
    file.write_text("the cluster's secret\n")
    file.chmod(0o644)
    with serving(tmp_path, option, str(file)) as server:
        server.send(signal.SIGTERM)
        server.exit_code()
    warning = json.loads(server.log.splitlines()[0])
    assert warning["level"] == "warning"
    assert warning["remedy"] == f"chmod 600 {file}"


def test_a_mistake_ends_the_process_without_a_traceback() -> None:
    popen = launch("--bind", "127.0.0.1:none")
    _, said = popen.communicate(timeout=PATIENCE)
    assert popen.returncode == 2
    assert said.startswith("parameter server: --bind: '127.0.0.1:none' is no")
    assert "Traceback" not in said


def test_a_killed_server_is_unavailable(tmp_path: Path) -> None:
    with serving(tmp_path) as server, RawClient(server.address, "") as client:
        client.open()
        server.send(signal.SIGKILL)
        assert server.exit_code() == -signal.SIGKILL
        with pytest.raises(UnavailableError):
            client.listing()


def serve_beside_a_fork(test: Connection) -> None:
    with ParameterServer(ServerSettings()) as server:
        addresses = server.address, server.health_address
        fork = multiprocessing.get_context("fork").Process(target=outlive, args=(test, addresses))
        fork.start()
        fork.join()


def outlive(test: Connection, addresses: tuple[str, str]) -> None:
    """Lives on until the test hangs up, as a loader's worker lives on with a long batch."""
    test.send(addresses)
    test.poll(None)


def test_a_server_that_is_killed_leaves_its_ports_to_the_next_whatever_it_had_forked() -> None:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    killed = spawn.Process(target=serve_beside_a_fork, args=(theirs,))
    killed.start()
    theirs.close()
    with ours:
        address, health_address = ours.recv()
        killed.kill()
        killed.join()
        with ParameterServer(ServerSettings(bind=address, health_bind=health_address)) as server:
            assert health_at(server.health_address) == SERVING
