"""Readers of a cluster's servers have what is published, version after version."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
import torch

from stratagem import (
    FailedPreconditionError,
    InvalidArgumentError,
    Reader,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem_proto.errors import DataLossError
from stratagem_proto.v1 import publication_pb2 as pb
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_reader.cluster_source import ClusterSource, WirePart
from stratagem_reader.cluster_source import _Server as Server
from stratagem_reader.sink import StoreSink
from stratagem_reader.source import Version
from stratagem_storage.checkpoint.folder import open_checkpoint
from tests.client.clusters import Cluster, running
from tests.client.servers.replicated import ReplicatedServer
from tests.conftest import TOKEN
from tests.psserver.moves.servers import movable
from tests.reader.followed import Model, Training, assert_equal_to
from tests.waiting import eventually

_SECONDS = 60.0


def test_a_replica_equals_its_servers_after_each_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With evictions, and a restoration in between, after which there is no increment."""
    with running(2) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        training.train()
        strategy.save(tmp_path / "kept")
        first = strategy.publish()
        with Reader(cluster.servers, token=TOKEN, timeout=_SECONDS) as reader:
            assert reader.version == first
            model = reader.module(Model)
            for number in range(6):
                rows, keys = training.batch(60)
                assert torch.equal(model(rows, keys), training.answers(rows, keys))
                strategy.save(tmp_path / "now", keep=1)
                assert_equal_to(reader, tmp_path / "now")
                if number == 3:
                    strategy.restore(tmp_path / "kept")
                training.train(steps=2)
                version = strategy.publish()
                assert reader.wait_for(version, _SECONDS) == version
            assert reader.age < 60.0
    assert "is read whole" not in caplog.text


def test_a_version_is_here_soon_after_it_is_published() -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        training.train()
        reading = Reader(cluster.servers, token=TOKEN, timeout=0)
        with strategy.publish_every(seconds=0.1), reading as reader:
            seen = {0}
            while len(seen) < 5:
                training.train(steps=1)
                seen.add(reader.wait_for(max(seen) + 1, _SECONDS))


def test_whoever_may_not_or_asks_others_is_refused() -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        training.train()
        with pytest.raises(FailedPreconditionError, match="a part of 2 servers"):
            Reader(cluster.servers[:1], token=TOKEN, timeout=_SECONDS)
        with pytest.raises(UnauthenticatedError):
            Reader(cluster.servers, token="another secret", timeout=_SECONDS)
    with pytest.raises(UnavailableError):
        Reader(cluster.servers, token=TOKEN, timeout=0.5)
    with pytest.raises(InvalidArgumentError, match="in a list"):
        ClusterSource([])


def test_a_lost_server_ends_nothing_and_its_return_is_followed(tmp_path: Path) -> None:
    """A server that comes back with its log has published the same, and goes on."""

    def server(address: str = "127.0.0.1:0") -> ParameterServer:
        log = {"durability": "log", "durability_folder": str(tmp_path)}
        return ParameterServer(ServerSettings(token=TOKEN, bind=address, **log))  # type: ignore[arg-type]

    with ExitStack() as serving, ExitStack() as stack:
        address = serving.enter_context(server()).address
        training = Training(stack.enter_context(Cluster([address], 1).strategy()))
        training.train()
        training.strategy.publish()
        reader = stack.enter_context(Reader([address], token=TOKEN, timeout=_SECONDS))
        before = reader.version
        rows, keys = training.batch()
        model = reader.module(Model)
        answers = model(rows, keys)
        serving.close()
        eventually(lambda: reader.source_error is not None, _SECONDS)
        assert isinstance(reader.source_error, UnavailableError)
        assert torch.equal(model(rows, keys), answers)
        stack.enter_context(server(address))
        training.train()
        assert reader.wait_for(training.strategy.publish(), _SECONDS) > before
        eventually(lambda: reader.source_error is None, _SECONDS)
        assert torch.equal(model(rows, keys), training.answers(rows, keys))


def test_what_comes_damaged_is_read_whole(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from stratagem_reader import cluster_source

    with running(1) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        training.train()
        strategy.publish()
        with Reader(cluster.servers, token=TOKEN, timeout=_SECONDS) as reader:
            model = reader.module(Model)
            part = cluster_source.WirePart
            read = part.read

            def damaged(self: cluster_source.WirePart, extents: object) -> None:
                if not self.is_whole:
                    raise DataLossError("this increment is damaged")
                read(self, extents)  # type: ignore[arg-type]

            monkeypatch.setattr(part, "read", damaged)
            training.train()
            assert reader.wait_for(strategy.publish(), _SECONDS)
            rows, keys = training.batch()
            assert torch.equal(model(rows, keys), training.answers(rows, keys))
    assert "is read whole, since what differs" in caplog.text


def test_bits_that_change_on_the_way_are_noticed() -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        training.train()
        strategy.publish()
        source = ClusterSource(cluster.servers, TOKEN)
        version = source.latest(None, 0.0)
        assert version is not None
        _, [[part]] = source.chains(version, None)
        messages = [*part._messages]  # type: ignore[attr-defined]
        for number, message in enumerate(messages):
            if message.HasField("data"):
                data = bytearray(message.data)
                data[len(data) // 2] ^= 4
                messages[number].data = bytes(data)
        part.__dict__["_messages"] = iter(messages)
        [name] = part.files
        with pytest.raises(DataLossError, match="is damaged"):
            for _ in part.blocks(name):
                pass
        source.close()


def test_a_server_that_hangs_keeps_no_reader_of_another_one_waiting() -> None:
    begun, over = threading.Event(), threading.Event()

    def hang(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        begun.set()
        over.wait(_SECONDS)
        yield b""

    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(hang)
    service = "stratagem_proto.v1.PublicationService"
    hanging = grpc.server(ThreadPoolExecutor(1))
    hanging.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {"ReadVersion": method})]
    )
    address = f"127.0.0.1:{hanging.add_insecure_port('127.0.0.1:0')}"
    hanging.start()
    version = Version(1, b"cut", 0.0)
    part = WirePart(Server("a hanging server", [address], ""), pb.VersionLink(version=1), version)
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            part.require_begun()
        except DataLossError as error:
            failures.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        assert begun.wait(_SECONDS)
        with running(1) as cluster, cluster.strategy() as strategy:
            Training(strategy).train()
            first = strategy.publish()
            with Reader(cluster.servers, token=TOKEN, timeout=_SECONDS) as reader:
                assert reader.version == first
        assert thread.is_alive() and not over.is_set()
    finally:
        over.set()
        thread.join(_SECONDS)
        hanging.stop(None)
    assert "does not begin with its description" in str(failures)


def test_a_folder_gets_what_servers_have_sent(tmp_path: Path) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        training.train()
        strategy.publish()
        source = ClusterSource(cluster.servers, TOKEN)
        sink = StoreSink(source, tmp_path / "versions", keep=2, whole_every=3)
        bases = []
        for _ in range(6):
            (written,) = sink.write_next(0.0)
            with Reader(tmp_path / "versions", timeout=_SECONDS) as reader:
                assert reader.version == written.number
                strategy.save(tmp_path / "now", keep=1)
                assert_equal_to(reader, tmp_path / "now")
            bases.append(len(open_checkpoint(tmp_path / "versions").index.bases))
            training.train(steps=1)
            strategy.publish()
        # After three increments comes a whole version.
        assert bases == [0, 1, 2, 3, 0, 1]
        # Several at once are several increments.
        strategy.publish()
        assert len(sink.write_next(0.0)) == 2
        source.close()


@pytest.mark.unlogged
def test_readers_go_to_the_backup_that_has_taken_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        replicated = ReplicatedServer(tmp_path, stack)
        training = Training(stack.enter_context(replicated.strategy()))
        training.train()
        training.strategy.publish()
        # It knows the one that is primary now, and hears of the other one.
        address = ",".join(server.address for server in replicated.running)
        reader = stack.enter_context(Reader([address], token=TOKEN, timeout=_SECONDS))
        model = reader.module(Model)
        replicated.end(replicated.primary)
        training.train()
        reader.wait_for(training.strategy.publish(), _SECONDS)
        rows, keys = training.batch()
        assert torch.equal(model(rows, keys), training.answers(rows, keys))
    assert "is read whole" not in caplog.text


@pytest.mark.unlogged
def test_readers_go_where_a_task_has_moved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with movable(tmp_path, 2) as servers, ExitStack() as stack:
        training = Training(stack.enter_context(Cluster(servers.addresses, 1).strategy()))
        training.train()
        training.strategy.save(tmp_path / "kept")
        training.strategy.publish()
        reader = stack.enter_context(Reader(servers.addresses, token=TOKEN, timeout=_SECONDS))
        model = reader.module(Model)
        for number in (1, 0):
            # What the server that takes the task has to know, too.
            training.strategy.restore(tmp_path / "kept")
            training.train(steps=1)
            servers.move(0, number)
            training.train()
            training.strategy.save(tmp_path / "now", keep=1)
            reader.wait_for(training.strategy.publish(), _SECONDS)
            assert_equal_to(reader, tmp_path / "now")
            rows, keys = training.batch()
            assert torch.equal(model(rows, keys), training.answers(rows, keys))
    assert "is read whole" not in caplog.text
