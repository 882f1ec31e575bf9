"""A server that reads a checkpoint for longer than its client waits for an answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stratagem import ParameterServerStrategy, Variable
from stratagem._parameter_server.checkpoints import restoring
from stratagem_proto.errors import FailedPreconditionError, NotFoundError
from stratagem_proto.v1 import checkpoint_pb2 as pb
from stratagem_psserver.rpcs import checkpoints
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.clusters import running
from tests.hostile_checkpoints import saved
from tests.psserver.wire import RawClient
from tests.waiting import eventually

SERVICE = "stratagem_proto.v1.CheckpointService"


class SlowReading:
    """Has servers read checkpoints once they are told to, and counts how often they begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_read, self.begun, read = threading.Event(), 0, checkpoints._read

        def slow(*given: Any) -> Any:
            self.begun += 1
            assert self.may_read.wait(60)
            return read(*given)

        monkeypatch.setattr(checkpoints, "_read", slow)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowReading:
    return SlowReading(monkeypatch)


@pytest.fixture
def client() -> Iterator[RawClient]:
    with ParameterServer(ServerSettings()) as server, RawClient(server.address, "") as client:
        client.open()
        client.create(w=torch.full((2,), 5.0), v=torch.full((2,), 6.0))
        yield client


def is_reading(
    client: RawClient, path: Path, seconds: float, restoration: bytes = b"1" * 16
) -> bool:
    request = pb.StageVariablesRequest(
        session_id=client.session_id,
        restoration=restoration,
        path=str(path),
        variables=["w"],
        wait_seconds=seconds,
    )
    response = client.unary("StageVariables", request, pb.StageVariablesResponse, service=SERVICE)
    return response.is_reading


def restored(client: RawClient, restoration: bytes) -> None:
    request = pb.RestoreVariablesRequest(key=client.key(), restoration=restoration)
    client.unary("RestoreVariables", request, pb.RestoreVariablesResponse, service=SERVICE)


def test_who_asks_again_waits_for_what_is_being_read(
    client: RawClient, slow: SlowReading, tmp_path: Path
) -> None:
    saved(tmp_path)
    for _ in range(3):
        assert is_reading(client, tmp_path, 0.01)
    with pytest.raises(FailedPreconditionError, match="has not read what it is to restore"):
        restored(client, b"1" * 16)
    for _ in range(2):
        assert is_reading(client, tmp_path, 0.01)
    slow.may_read.set()
    for seconds in (0.0, 0.01):
        assert not is_reading(client, tmp_path, seconds)
    # The second one began when the first was given up.
    assert slow.begun == 2
    before = client.everything()
    restored(client, b"1" * 16)
    assert client.everything() != before


def test_a_failure_is_told_whoever_asks_and_the_next_one_reads_again(
    client: RawClient, slow: SlowReading, tmp_path: Path
) -> None:
    assert is_reading(client, tmp_path / "run", 0.01)
    slow.may_read.set()
    for _ in range(2):
        with pytest.raises(NotFoundError):
            while is_reading(client, tmp_path / "run", 0.01):
                pass
    saved(tmp_path / "run")
    assert not is_reading(client, tmp_path / "run", 0.0)
    assert slow.begun == 3


def test_another_restoration_takes_the_place_of_the_one_before(
    client: RawClient, slow: SlowReading, tmp_path: Path
) -> None:
    saved(tmp_path)
    assert is_reading(client, tmp_path, 0.01)
    assert is_reading(client, tmp_path, 0.01, b"2" * 16)
    slow.may_read.set()
    assert not is_reading(client, tmp_path, 0.0, b"2" * 16)
    restored(client, b"2" * 16)


def test_a_server_that_reads_ends_in_order(slow: SlowReading, tmp_path: Path) -> None:
    saved(tmp_path)
    with ParameterServer(ServerSettings()) as server, RawClient(server.address, "") as client:
        client.open()
        client.create(w=torch.full((2,), 5.0), v=torch.full((2,), 6.0))
        assert is_reading(client, tmp_path, 0.01)
        slow.may_read.set()


def test_a_program_restores_however_long_its_servers_read(
    slow: SlowReading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "_LOOK_SECONDS", 0.01)
    looks, asked = list[int](), restoring.Restoration._asked

    def noted(*given: Any) -> Any:
        looks.append(1)
        return asked(*given)

    monkeypatch.setattr(restoring.Restoration, "_asked", noted)

    def program(strategy: ParameterServerStrategy) -> list[Variable]:
        with strategy.scope():
            return [Variable(torch.zeros(4), name=name) for name in ("one", "other")]

    with running(2) as cluster:
        with cluster.strategy() as strategy:
            for variable in program(strategy):
                variable.assign(torch.arange(4.0))
            strategy.save(tmp_path / "run")
        with cluster.strategy() as strategy:
            variables = program(strategy)
            for variable in variables:
                variable.assign(torch.zeros(4))
            restoring_it = threading.Thread(target=strategy.restore, args=(tmp_path / "run",))
            restoring_it.start()
            eventually(lambda: len(looks) > 3)
            slow.may_read.set()
            restoring_it.join(60)
            assert slow.begun == 2
            for variable in variables:
                assert variable.numpy().tolist() == [0.0, 1.0, 2.0, 3.0]
