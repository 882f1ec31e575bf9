"""Reader servers answer lookups of the version that they have, and are followed in turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2

from stratagem import (
    DeadlineExceededError,
    InvalidArgumentError,
    PermissionDeniedError,
    Reader,
    RowIndexError,
    StaleVersionError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    VariableNotFoundError,
    VersionExpiredError,
)
from stratagem_deploy.watching.rows import of_reader_server
from stratagem_proto.v1.status_pb2 import ReaderServerStatus
from stratagem_reader.lookup_client import LookupClient, Wanted
from stratagem_reader.lookups import MAX_ANSWER_BYTES
from stratagem_reader.server import LOOKUPS, SOURCE_HEALTH, ReaderServer, ReaderServerSettings
from stratagem_reader.sources import source_at
from stratagem_rpc.serving.metrics import families_of
from stratagem_rpc.serving.policy import read_policy
from tests.client.clusters import running
from tests.conftest import TOKEN
from tests.reader.followed import ROWS, WIDTH, Model, Training
from tests.waiting import eventually

_SECONDS = 60.0


class Saved:
    """A training whose versions are in a folder."""

    def __init__(self, training: Training, folder: Path) -> None:
        self.training, self.folder = training, folder
        self.save()

    def save(self) -> None:
        self.training.train(steps=1)
        self.training.strategy.save(self.folder, incremental=True, keep=2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saved]:
    with running(2) as cluster, cluster.strategy() as strategy:
        yield Saved(Training(strategy), tmp_path_factory.mktemp("versions"))


@contextmanager
def serving(source: str | Path, **settings: object) -> Iterator[ReaderServer]:
    given = ReaderServerSettings(token=TOKEN, **settings)  # type: ignore[arg-type]
    server = ReaderServer(given, source_at(str(source), TOKEN, is_whole=True))
    with server:
        yield server


@contextmanager
def reading(server: ReaderServer, **settings: object) -> Iterator[Reader]:
    source = source_at(f"serve://{server.address}", TOKEN)
    with Reader(source, timeout=_SECONDS, **settings) as reader:  # type: ignore[arg-type]
        yield reader


@contextmanager
def asking(
    server: ReaderServer, transport: str = "auto", token: str = TOKEN
) -> Iterator[LookupClient]:
    client = LookupClient(server.address, token, timeout=10.0, transport=transport)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture(scope="module")
def server(saved: Saved) -> Iterator[ReaderServer]:
    with serving(saved.folder) as server:
        server.follower.wait_for(1, _SECONDS)
        yield server


def described(server: ReaderServer) -> ReaderServerStatus:
    return server._described().reader_server


def answers_health(server: ReaderServer, service: str) -> bool:
    with grpc.insecure_channel(server.health_address) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        answer = check(health_pb2.HealthCheckRequest(service=service), timeout=_SECONDS)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@pytest.mark.parametrize("transport", ["auto", "unix", "tcp", "grpc"])
def test_each_transport_brings_the_rows_that_a_reader_has_here(
    saved: Saved, server: ReaderServer, transport: str
) -> None:
    """Several tables at once, unknown keys and repeated ones, by shared memory from the second."""
    rows, keys = saved.training.batch(20_000)
    stored = server.follower.keys("dynamic.weight")
    keys[: len(stored)] = stored
    with asking(server, transport) as client:
        for _ in range(3):
            answer = client.look_up(
                [
                    Wanted("fixed.weight", rows),
                    Wanted("dynamic.weight", keys),
                    Wanted("first.weight", torch.tensor([1, 0, 1])),
                    Wanted("bag.weight", rows[:0]),
                ]
            )
            assert answer.version == server.follower.version
            fixed, dynamic, dense, none = answer.rows
            assert torch.equal(fixed, server.follower.lookup("fixed.weight", rows))
            assert torch.equal(dynamic, server.follower.lookup("dynamic.weight", keys))
            first = server.follower.value("first.weight")
            assert torch.equal(dense, first[torch.tensor([1, 0, 1])])
            assert none.shape == (0, WIDTH)
        expected = {"auto": "unix"}.get(transport, transport)
        assert client.way == expected


def test_missing_keys_get_what_the_caller_says(server: ReaderServer) -> None:
    unknown = torch.tensor([1 << 50, (1 << 50) + 1])
    with reading(server) as reader:
        row = torch.arange(WIDTH, dtype=torch.float32)
        assert torch.equal(
            reader.lookup("dynamic.weight", unknown, default=0.5), torch.full((2, WIDTH), 0.5)
        )
        assert torch.equal(reader.lookup("dynamic.weight", unknown, default=row)[1], row)
        begun = reader.lookup("dynamic.weight", unknown)
        assert torch.equal(begun, server.follower.lookup("dynamic.weight", unknown))
        with pytest.raises(InvalidArgumentError, match="default has shape"):
            reader.lookup("dynamic.weight", unknown, default=torch.zeros(3))


def test_more_rows_than_an_answer_has_come_in_several_of_one_version(server: ReaderServer) -> None:
    rows = torch.arange(MAX_ANSWER_BYTES // (4 * WIDTH) + 5) % ROWS
    with asking(server) as client:
        found = client.look_up([Wanted("fixed.weight", rows)]).rows[0]
    assert torch.equal(found, server.follower.lookup("fixed.weight", rows))


def test_a_module_answers_at_a_server_as_here_while_versions_come(saved: Saved) -> None:
    """Rows and dense values of one version, though each is elsewhere."""
    stop, errors = threading.Event(), list[BaseException]()

    with serving(saved.folder) as server, reading(server) as reader:
        model = reader.module(Model)
        assert all(not each.is_leaf or not each.requires_grad for each in model.parameters())
        batch = saved.training.batch()
        expected: dict[int, torch.Tensor] = {}
        got: list[tuple[int, torch.Tensor]] = []

        def ask() -> None:
            try:
                while not stop.is_set():
                    with reader.pin() as version:
                        got.append((version, model(*batch)))
                    model(*batch)
            except BaseException as error:
                errors.append(error)

        with Reader(saved.folder, timeout=_SECONDS) as direct:
            thread = threading.Thread(target=ask)
            thread.start()
            here = direct.module(Model)
            for _ in range(6):
                with direct.pin() as version:
                    expected[version] = here(*batch)
                reader.wait_for(version, _SECONDS)
                saved.save()
                direct.wait_for(version + 1, _SECONDS)
            stop.set()
            thread.join(_SECONDS)
        assert not errors
        versions = [version for version, _ in got]
        assert versions == sorted(versions)
        compared = [torch.equal(expected[v], out) for v, out in got if v in expected]
        assert len(compared) > 3 and all(compared)
        # Tables are looked up, and never come.
        assert not reader.replica.tables["fixed.weight"].count
        with pytest.raises(UnimplementedError, match="not here"):
            reader.keys("dynamic.weight")


def test_a_pin_that_the_server_has_left_behind_says_so(saved: Saved) -> None:
    with serving(saved.folder, hold_seconds=0.1) as server, reading(server) as reader:
        before = reader.version
        rows = torch.arange(ROWS)
        with reader.pin(lease=_SECONDS) as version:
            assert version == before
            held = reader.lookup("fixed.weight", rows)
            assert torch.equal(held, reader.lookup("fixed.weight", rows))
            saved.save()
            server.follower.wait_for(before + 1, _SECONDS)
            with pytest.raises(VersionExpiredError, match=f"and not {version}"):
                reader.lookup("fixed.weight", rows)
        reader.wait_for(before + 1, _SECONDS)
        assert not torch.equal(held, reader.lookup("fixed.weight", rows))


def test_clients_cannot_keep_a_version_for_ever(saved: Saved) -> None:
    with serving(saved.folder, hold_seconds=0.2) as server, asking(server) as client:
        first = client.look_up([], min_version=1, wait=_SECONDS)
        saved.save()
        end = time.monotonic() + _SECONDS
        while client.look_up([], hold=10.0).version == first.version:
            assert time.monotonic() < end, "a client keeps the server from later versions"


def test_servers_behind_servers_have_each_version_by_increments(saved: Saved) -> None:
    with (
        serving(saved.folder) as first,
        serving(f"serve://{first.address}") as second,
        serving(f"serve://{second.address}") as third,
        Reader(source_at(f"serve://{third.address}", TOKEN, is_whole=True)) as last,
    ):
        for _ in range(4):
            before = last.version
            saved.save()
            with Reader(saved.folder, timeout=_SECONDS) as direct:
                assert last.wait_for(before + 1, _SECONDS) == direct.version
                mine, theirs = (
                    dict(last.replica.tensors_by_name()),
                    direct.replica.tensors_by_name(),
                )
                assert mine.keys() == theirs.keys()
                assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        assert (described(second).wholes, described(third).wholes) == (1, 1)
        assert described(third).publication.increments >= 3


def test_a_server_that_loses_its_source_goes_on_and_says_so(saved: Saved) -> None:
    away = saved.folder.with_name("away")
    with serving(saved.folder) as server, reading(server) as reader:
        rows = torch.arange(ROWS)
        before = reader.lookup("fixed.weight", rows)
        assert answers_health(server, SOURCE_HEALTH)
        saved.folder.rename(away)
        try:
            eventually(lambda: bool(described(server).source_problem))
            assert torch.equal(reader.lookup("fixed.weight", rows), before)
            holds, does = of_reader_server(described(server))
            assert "its source is lost" in does
            assert f"version {server.follower.version}" in does
            assert "rows of tables" in holds
            eventually(lambda: not answers_health(server, SOURCE_HEALTH))
            assert answers_health(server, LOOKUPS.full_name)
            families = {each.name: each for each in families_of(server._described())}
            assert families["stratagem_source_lost"].samples[0].value == 1
        finally:
            away.rename(saved.folder)
        eventually(lambda: not described(server).source_problem)
        saved.save()
        reader.wait_for(reader.version + 1, _SECONDS)
        eventually(lambda: answers_health(server, SOURCE_HEALTH))


def test_versions_that_are_too_old_are_refused(saved: Saved) -> None:
    most = 3.0
    with serving(saved.folder, max_age=most) as server, asking(server) as client:
        server.follower.wait_for(1, _SECONDS)
        eventually(lambda: server.follower.age > most)
        eventually(lambda: not answers_health(server, LOOKUPS.full_name))
        with pytest.raises(StaleVersionError, match="answers for 3 s"):
            client.look_up([])

        def saved_again() -> bool:
            saved.save()
            server.follower.wait_for(server.follower.version + 1, _SECONDS)
            return answers_health(server, LOOKUPS.full_name) and client.look_up([]).age <= most

        eventually(saved_again)


def test_what_a_server_cannot_answer_says_why(saved: Saved, server: ReaderServer) -> None:
    with asking(server) as client:
        with pytest.raises(VariableNotFoundError, match="has no variable 'other'"):
            client.look_up([Wanted("other", torch.tensor([1]))])
        with pytest.raises(RowIndexError, match=f"has no row {ROWS}"):
            client.look_up([Wanted("fixed.weight", torch.tensor([0, ROWS]))])
        with pytest.raises(InvalidArgumentError, match="neither an element nor a row"):
            client.look_up([Wanted("dynamic.weight", torch.tensor([1]), b"abc")])
        with pytest.raises(StaleVersionError, match="was asked for"):
            client.look_up([], min_version=server.follower.version + 1, wait=0.1)
        with pytest.raises(VersionExpiredError, match="and not 7"):
            client.look_up([], version=7)
        assert client.look_up([Wanted("fixed.weight", torch.tensor([0]))]).rows[0].shape == (
            1,
            WIDTH,
        )
    with pytest.raises(UnauthenticatedError), asking(server, token="another" * 5) as client:
        client.look_up([])
    with pytest.raises(InvalidArgumentError, match="is not an address of a server"):
        LookupClient("nowhere")


def test_a_server_without_a_version_asks_for_patience(tmp_path: Path, saved: Saved) -> None:
    with serving(tmp_path / "later") as server, asking(server) as client:
        client._timeout = 0.3
        with pytest.raises(UnavailableError, match="has no version of"):
            client.look_up([])
        assert not answers_health(server, LOOKUPS.full_name)
        _, does = of_reader_server(described(server))
        assert does.startswith("no version of")
        with pytest.raises(DeadlineExceededError, match="any version"):
            Reader(source_at(f"serve://{server.address}", TOKEN), timeout=0.5)
        saved.training.strategy.save(tmp_path / "later")
        client._timeout = _SECONDS
        assert client.look_up([]).version


def test_a_policy_says_who_looks_up_what(tmp_path: Path, saved: Saved) -> None:
    (tmp_path / "policy").write_text("reader may read fixed*\n")
    policy = read_policy(tmp_path / "policy")
    with serving(saved.folder, policy=policy) as server, asking(server) as client:
        server.follower.wait_for(1, _SECONDS)
        client.look_up([Wanted("fixed.weight", torch.tensor([1]))])
        with pytest.raises(PermissionDeniedError, match=r"bag\.weight"):
            client.look_up([Wanted("bag.weight", torch.tensor([1]))])
        with pytest.raises(PermissionDeniedError):
            Reader(source_at(f"serve://{server.address}", TOKEN), timeout=5)


def test_clients_go_on_with_a_server_that_was_started_again(saved: Saved) -> None:
    with serving(saved.folder) as server:
        address = server.address
        client = LookupClient(address, TOKEN, timeout=_SECONDS)
        client.look_up([], min_version=1, wait=_SECONDS)
    try:
        with serving(saved.folder, bind=address):
            answer = client.look_up(
                [Wanted("fixed.weight", torch.arange(3))], min_version=1, wait=30
            )
            assert answer.rows[0].shape == (3, WIDTH)
    finally:
        client.close()
