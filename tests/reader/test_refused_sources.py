"""What readers of a cluster's servers refuse to follow, and what they say to do."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
import torch

from stratagem import FailedPreconditionError, InvalidArgumentError, Reader
from stratagem_proto.errors import DifferentTrainingError, UnimplementedError
from stratagem_proto.v1.publication_pb2 import PublishHeader
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_reader import cluster_source
from stratagem_reader.lookup_client import LookupClient
from tests.client.clusters import Cluster
from tests.conftest import TOKEN
from tests.reader.followed import Training
from tests.waiting import eventually

_SECONDS = 60.0


@contextmanager
def published(*addresses: str) -> Iterator[tuple[list[ParameterServer], Training]]:
    """Servers with a model that is published once."""
    servers = [
        ParameterServer(ServerSettings(task=task, token=TOKEN, bind=each))
        for task, each in enumerate(addresses)
    ]
    for server in servers:
        server.start()
    try:
        with Cluster([server.address for server in servers], 1).strategy() as strategy:
            training = Training(strategy)
            training.train()
            strategy.publish()
            yield servers, training
    finally:
        for server in servers:
            server.stop()


ANY = "127.0.0.1:0"


def test_a_newer_form_of_versions_needs_a_later_release(monkeypatch: pytest.MonkeyPatch) -> None:
    with published(ANY) as ([server], training):
        monkeypatch.setattr(cluster_source, "FORMAT", 0)
        with pytest.raises(FailedPreconditionError, match=r"has format 1; .*install a later one"):
            Reader([server.address], token=TOKEN, timeout=_SECONDS)
        monkeypatch.undo()
        with Reader([server.address], token=TOKEN, timeout=_SECONDS) as reader:
            before = reader.version
            monkeypatch.setattr(cluster_source, "FORMAT", 0)
            training.train()
            training.strategy.publish()
            eventually(lambda: "install a later one" in str(reader.source_error), _SECONDS)
            assert reader.version == before and len(reader.value("first.weight"))


def test_one_number_of_two_publishers_is_no_version() -> None:
    with published(ANY, ANY) as (servers, training):
        addresses = [server.address for server in servers]
        with Reader(addresses, token=TOKEN, timeout=_SECONDS) as reader:
            before, value = reader.version, reader.value("first.weight")
            training.train()
            for number, server in enumerate(servers):
                cut = bytes([number]) * 16
                publish(server, PublishHeader(cut=cut, version=before + 1, published_at=1))
            said = "two programs publish at once; end one of them"
            eventually(lambda: said in str(reader.source_error), _SECONDS)
            assert isinstance(reader.source_error, FailedPreconditionError)
            assert reader.version == before and torch.equal(reader.value("first.weight"), value)
            last = training.strategy.publish()
            assert reader.wait_for(last, _SECONDS) == last


def publish(server: ParameterServer, header: PublishHeader) -> None:
    """Has a server publish as of a cut of its own."""
    state: Any = server._state

    async def act() -> None:
        state.publication.publish(header, state.store, (), b"somebody else")

    server._loop.run(act())


def test_servers_of_another_training_are_not_followed() -> None:
    with published(ANY) as ([server], _):
        address = server.address
        reader = Reader([address], token=TOKEN, timeout=_SECONDS)
        before = reader.version
    with reader, published(address):
        eventually(lambda: isinstance(reader.source_error, DifferentTrainingError), _SECONDS)
        assert "make another stratagem.Reader" in str(reader.source_error)
        assert reader.version == before


def test_servers_of_two_trainings_are_no_source() -> None:
    with published(ANY) as ([one], _), published(ANY) as ([other], _):
        said = "not of one training; pass those of one cluster"
        with pytest.raises(FailedPreconditionError, match=said):
            Reader([one.address, other.address], token=TOKEN, timeout=_SECONDS)


def test_servers_of_other_kinds_are_no_source() -> None:
    with published(ANY) as ([server], _):
        with pytest.raises(InvalidArgumentError, match="by its address without serve://"):
            Reader(f"serve://{server.address}", token=TOKEN, timeout=_SECONDS)
        client = LookupClient(server.address, TOKEN)
        with pytest.raises(UnimplementedError, match=r"no reader server.*`stratagem serve` starts"):
            client.look_up([])
        client.close()
    other = grpc.server(ThreadPoolExecutor(1))
    address = f"127.0.0.1:{other.add_insecure_port('127.0.0.1:0')}"
    other.start()
    with pytest.raises(UnimplementedError, match="give the addresses of parameter servers"):
        Reader([address], token="", timeout=_SECONDS)
    other.stop(None)
