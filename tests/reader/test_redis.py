"""Versions in a Redis, for programs that know nothing of Stratagem."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import trustme
from typer.testing import CliRunner

from stratagem import (
    DifferentTrainingError,
    FailedPreconditionError,
    InvalidArgumentError,
    ParameterServerStrategy,
    Reader,
    ResourceExhaustedError,
    SupersededError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem_deploy.cli import app
from stratagem_deploy.following import follow
from stratagem_reader import redis_sink, turns
from stratagem_reader.redis_sink import RedisSink
from stratagem_reader.sources import source_at
from stratagem_storage.checkpoint.folder import open_checkpoint
from tests.checkpoints import model, save_at
from tests.client.clusters import running
from tests.conftest import TOKEN
from tests.psserver.replication.arbiters.etcd import free_port
from tests.reader.followed import Training
from tests.waiting import eventually

redis = pytest.importorskip("redis", reason="needs the package redis")

_VERSIONS = 5

_PROGRAM = shutil.which("redis-server")
pytestmark = pytest.mark.skipif(_PROGRAM is None, reason="needs redis-server")


class _Redis:
    """A Redis of a test, on a socket of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "redis"
        self.url = f"unix://{self.path}"
        self.start()

    def start(self, *options: str) -> None:
        arguments = [str(_PROGRAM), "--port", "0", "--unixsocket", str(self.path), "--save", ""]
        self._process = subprocess.Popen(
            [*arguments, "--dir", str(self.path.parent), *options], stdout=subprocess.DEVNULL
        )
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        self.client: Any = redis.Redis(unix_socket_path=str(self.path), retry=retry)
        for _ in range(200):
            try:
                self.client.ping()
                return
            except redis.AuthenticationError:
                return
            except redis.ConnectionError:
                threading.Event().wait(0.05)
        raise TimeoutError("redis-server has not begun")

    def stop(self) -> None:
        self.client.close()
        self._process.terminate()
        self._process.wait(20)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[_Redis]:
    found = _Redis(tmp_path)
    yield found
    found.stop()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source"


def _rows(client: Any, name: str) -> dict[int, bytes]:
    return {int(key): row for key, row in client.hgetall(f"stratagem:rows:{name}").items()}


def _assert_equal_to(client: Any, reader: Reader, number: int) -> None:
    """Redis has each row and value of a version, and nothing else."""
    about = {name.decode(): each for name, each in client.hgetall("stratagem:version").items()}
    assert int(about["version"]) == number
    names = {"stratagem:version", "stratagem:turn"}
    for name, table in reader.replica.tables.items():
        keys = reader.keys(name)
        rows = torch.cat([part.rows for part in table.parts])
        expected = {key: _bytes(row) for key, row in zip(keys.tolist(), rows, strict=True)}
        assert _rows(client, name) == expected
        told = json.loads(about[f"table:{name}"])
        assert told == {
            "dtype": str(rows.dtype).removeprefix("torch."),
            "shape": [*rows.shape[1:]],
            "rows": len(rows),
        }
        names |= {f"stratagem:keys:{part.name}" for part in table.parts if part.count}
        names |= {f"stratagem:rows:{name}"} if expected else set()
    for name, dense in reader.replica.dense.items():
        assert client.get(f"stratagem:value:{name}") == _bytes(dense.value)
        names.add(f"stratagem:value:{name}")
    assert {each.decode() for each in client.scan_iter()} == names


def _bytes(value: torch.Tensor) -> bytes:
    return bytes(value.contiguous().view(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize(
    "servers", [pytest.param(1, marks=pytest.mark.full("two have what one has")), 2]
)
def test_each_version_of_a_folder_is_in_redis_to_the_byte(
    server: _Redis, source: Path, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(servers) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        training.train()
        strategy.save(source)
        sink = RedisSink(source_at(source), server.url)
        (first,) = sink.write_next(0.0)
        with Reader(source) as reader:
            _assert_equal_to(server.client, reader, first.number)
            whole = server.client.info("commandstats")["cmdstat_rename"]["calls"]
            for number in range(8):
                training.train(steps=1 + number)
                strategy.save(source, incremental=True)
                if number == 3:
                    # One that begins anew goes on by increments.
                    sink.close()
                    sink = RedisSink(source_at(source), server.url)
                if number == 7:
                    monkeypatch.setattr(redis_sink, "_MOST_ROWS_AT_ONCE", 1)
                    monkeypatch.setattr(redis_sink, "_MOST_SHARE_AT_ONCE", 0.0)
                (written,) = sink.write_next(0.0)
                reader.wait_for(written.number)
                _assert_equal_to(server.client, reader, written.number)
                renamed = server.client.info("commandstats")["cmdstat_rename"]["calls"]
                assert (renamed > whole) == (number == 7)
        sink.close()


_Seen = tuple[int, bytes, bytes]
"""The number of a version, the rows of a table, and a value."""


class _Watching:
    """Reads a version by one transaction, again and again."""

    def __init__(self, server: _Redis) -> None:
        self.seen: list[_Seen] = []
        self._path, self._ended = str(server.path), threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        client = redis.Redis(unix_socket_path=self._path)
        while not self._ended.is_set():
            found = _now(client)
            if found is not None and found not in self.seen[-1:]:
                self.seen.append(found)
        client.close()

    def __enter__(self) -> _Watching:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def _now(client: Any) -> _Seen | None:
    with client.pipeline() as pipe:
        pipe.hget("stratagem:version", "version")
        pipe.hmget("stratagem:rows:fixed.weight", range(300))
        pipe.get("stratagem:value:first.weight")
        number, rows, value = pipe.execute()
    return None if number is None else (int(number), b"".join(each or b"-" for each in rows), value)


def test_a_reader_sees_one_version_at_a_time(server: _Redis, source: Path) -> None:
    """Rows, values and the number, read by one transaction, are of one version."""
    written = set[_Seen | None]()
    with running(2) as cluster, cluster.strategy() as strategy, _Watching(server) as watching:
        training = Training(strategy)
        sink = RedisSink(source_at(source), server.url)
        for number in range(20):
            training.train(steps=1)
            # Whole ones, and what differs.
            strategy.save(source, incremental=number % 5 > 0)
            sink.write_next(0.0)
            written.add(_now(server.client))
        sink.close()
    assert {*watching.seen} <= written and len(watching.seen) > 1


@pytest.mark.full("kills take time; versions that are read meanwhile show that each comes at once")
def test_followers_that_are_killed_leave_whole_versions(server: _Redis, source: Path) -> None:
    """Whatever a follower does when it is killed, versions are whole, and none goes back."""
    truth = dict[int, _Seen]()
    arguments = [sys.executable, "-m", "tests.reader.killed_followers", str(source), server.url]
    with ExitStack() as stack:
        cluster = stack.enter_context(running(2))
        strategy = stack.enter_context(cluster.strategy())
        watching = stack.enter_context(_Watching(server))
        training = _saved(strategy, source)
        followers = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        stack.callback(followers.kill)
        reader = stack.enter_context(Reader(source))
        eventually(lambda: bool(watching.seen), 120.0)
        give_up_at = time.monotonic() + 120.0
        while len({each[0] for each in watching.seen} & {*truth}) < _VERSIONS:
            assert time.monotonic() < give_up_at, "hardly a version was written"
            training.train(steps=1)
            strategy.save(source, incremental=len(truth) % 4 > 0, keep=40)
            version = reader.wait_for(_latest(source))
            truth[version] = version, _stored(reader), _bytes(reader.value("first.weight"))
        kills, _ = followers.communicate("end", timeout=60.0)
        assert followers.returncode == 0 and int(kills) >= _VERSIONS
        # One that is not killed goes on where they were.
        sink = RedisSink(source_at(source), server.url)
        sink.write_next(0.0)
        sink.close()
        _assert_equal_to(server.client, reader, version)
    numbers = [each[0] for each in watching.seen]
    assert numbers == sorted(numbers)
    for each in watching.seen:
        assert each == truth.get(each[0], each)


def _stored(reader: Reader) -> bytes:
    """Return the rows of a table that are stored, in the order of their numbers."""
    table = reader.replica.table("fixed.weight")
    rows = torch.cat([part.rows for part in table.parts])
    found = dict(zip(reader.keys("fixed.weight").tolist(), map(_bytes, rows), strict=True))
    return b"".join(found.get(number, b"-") for number in range(300))


def _latest(source: Path) -> int:
    published = open_checkpoint(source).index.published
    assert published is not None
    return published.version


def test_the_command_writes_what_servers_publish(server: _Redis, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    environment = {"STRATAGEM_TOKEN_FILE": str(tmp_path / "token")}
    with running(2) as cluster, cluster.strategy() as strategy:
        training = Training(strategy)
        arguments = ["follow", *cluster.servers, "--to", server.url, "--versions=1", "--json"]
        with ExitStack() as stack:
            for _ in range(2):
                training.train()
                version = strategy.publish()
                done = CliRunner().invoke(app, arguments, env=environment)
                assert done.exit_code == 0, done.output
                told = json.loads(done.output)
                assert (told["version"], told["place"]) == (version, server.url)
                reader = stack.enter_context(Reader(cluster.servers, token=TOKEN))
                _assert_equal_to(server.client, reader, version)
    wholes = server.client.info("commandstats")["cmdstat_rename"]["calls"]
    tables, parts, others = 3, 5, len(reader.replica.dense)
    assert wholes <= tables + parts + others
    refused = CliRunner().invoke(app, [*arguments, "--keep=2"], env=environment)
    assert refused.exit_code == 2 and "a Redis has one version" in refused.output


def _saved(strategy: ParameterServerStrategy, source: Path, seed: int = 0) -> Training:
    training = Training(strategy, seed)
    training.train()
    strategy.save(source)
    return training


def test_a_redis_that_was_lost_or_that_has_lost_something_is_gone_on_with(
    server: _Redis, source: Path
) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        training = _saved(strategy, source)
        sink = RedisSink(source_at(source), server.url)
        sink.write_next(0.0)
        training.train(steps=1)
        strategy.save(source, incremental=True)
        server.client.hdel(
            "stratagem:rows:bag.weight", *server.client.hkeys("stratagem:rows:bag.weight")[:3]
        )
        server.client.sadd("stratagem:staged", "stratagem:left")
        server.client.set("stratagem:left", "of one that was killed")
        with Reader(source) as reader:
            (version,) = sink.write_next(0.0)
            _assert_equal_to_but(server.client, reader, version.number, {"stratagem:left"})
            server.stop()
            training.train(steps=1)
            strategy.save(source, incremental=True)
            with pytest.raises(UnavailableError, match="cannot be reached"):
                sink.write_next(0.0)
            server.start()
            # It had kept nothing.
            (version,) = sink.write_next(0.0)
            reader.wait_for(version.number)
            _assert_equal_to(server.client, reader, version.number)
            server.client.set("stratagem:left", "of one that was killed")
            server.client.sadd("stratagem:staged", "stratagem:left")
            again = RedisSink(source_at(source), server.url)
            assert again.write_next(0.0) == []
            _assert_equal_to(server.client, reader, version.number)
            training.train(steps=1)
            strategy.save(source, incremental=True)
            (version,) = again.write_next(0.0)
            # The one that began later goes on, and this one ends.
            for _ in range(2):
                with pytest.raises(SupersededError, match="another `stratagem follow` writes"):
                    sink.write_next(0.0)
            reader.wait_for(version.number)
            _assert_equal_to(server.client, reader, version.number)
        again.close()
        sink.close()


def test_of_two_that_are_kept_running_one_writes_and_the_other_stands_by(
    server: _Redis, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(turns, "SILENT_SECONDS", 3.0)
    said = list[str]()
    monkeypatch.setattr("typer.echo", lambda text, err=False: said.append(text))
    with running(1) as cluster, cluster.strategy() as strategy:
        training = _saved(strategy, source)
        command = partial(follow, [str(source)], server.url, versions=3)
        # A signal is for the main thread alone.
        monkeypatch.setattr("signal.signal", lambda *_: None)
        first = threading.Thread(target=command, daemon=True)
        first.start()
        eventually(lambda: _now(server.client) is not None)
        later = RedisSink(source_at(source), server.url)
        later.write_next(0.0)
        training.train()
        strategy.save(source)
        later.write_next(1.0)
        eventually(lambda: any("another `stratagem follow` writes" in text for text in said))
        # It is there without a version for longer than it may be silent.
        first.join(4.0)
        assert first.is_alive()
        later.close()
        training.train()
        strategy.save(source)
        eventually(lambda: said[-1].startswith("version "))
        assert sum("another `stratagem follow`" in text for text in said) == 1
        training.train()
        strategy.save(source)
        first.join(60)
        assert not first.is_alive()


def test_a_redis_that_comes_late_is_waited_for_and_told_once(server: _Redis, source: Path) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        _saved(strategy, source)
    server.stop()
    later = threading.Timer(3.0, server.start)
    later.start()
    arguments = ["follow", str(source), "--to", server.url, "--versions=1"]
    done = CliRunner().invoke(app, arguments)
    later.join()
    assert done.exit_code == 0, done.output
    assert done.output.count("it is tried again") == 1
    # A user that has these names alone is enough.
    server.client.flushall()
    user = {"passwords": ["+a secret"], "keys": ["stratagem:*"], "commands": ["+@all"]}
    server.client.acl_setuser("follower", enabled=True, **user)
    url = f"unix://follower:a%20secret@{server.path}"
    done = CliRunner().invoke(app, [*arguments[:3], url, "--versions=1"])
    assert done.exit_code == 0 and f"is in {server.url}," in done.output
    done = CliRunner().invoke(app, [*arguments[:3], url + "?prefix=other", "--versions=1"])
    assert done.exit_code == 2 and "let its user use" in done.output
    assert "secret" not in done.output


def test_a_redis_is_written_over_tls(server: _Redis, source: Path, tmp_path: Path) -> None:
    value = torch.ones(3, 2)
    save_at(source, [[(model("one", value), value)]], keep=1)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    certificate = authority.issue_cert("localhost")
    certificate.private_key_pem.write_to_path(str(tmp_path / "key"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "certificate"))
    server.stop()
    files = ("cert", tmp_path / "certificate"), ("key", tmp_path / "key")
    options = [each for name, path in files for each in (f"--tls-{name}-file", str(path))]
    port = str(free_port())
    options += ["--tls-ca-cert-file", str(tmp_path / "ca"), "--tls-auth-clients", "no"]
    server.start(*options, "--tls-port", port)
    url = f"rediss://localhost:{port}/0"
    sink = RedisSink(source_at(source), f"{url}?ssl_ca_certs={tmp_path / 'ca'}")
    assert sink.write_next(0.0) and sink.name == url
    sink.close()
    with pytest.raises(UnavailableError, match="certificate verify failed"):
        RedisSink(source_at(source), url).write_next(0.0)


def test_a_redis_that_is_behind_is_noticed(server: _Redis, source: Path) -> None:
    """A replica may take over that has not had the last version."""
    with running(2) as cluster, cluster.strategy() as strategy:
        training, again = _saved(strategy, source), RedisSink(source_at(source), server.url)
        again.write_next(0.0)
        with Reader(source) as reader:
            behind = {name: server.client.dump(name) for name in server.client.scan_iter()}
            training.train(steps=1)
            strategy.save(source, incremental=True)
            again.write_next(0.0)
            server.client.flushall()
            for name, dumped in behind.items():
                server.client.restore(name, 0, dumped)
            training.train(steps=1)
            strategy.save(source, incremental=True)
            with pytest.raises(UnavailableError, match="has lost what was written"):
                again.write_next(0.0)
            (version,) = again.write_next(0.0)
            reader.wait_for(version.number)
            _assert_equal_to(server.client, reader, version.number)
        again.close()


def _assert_equal_to_but(client: Any, reader: Reader, number: int, others: set[str]) -> None:
    for name in others:
        client.delete(name)
    _assert_equal_to(client, reader, number)


def test_what_is_not_meant_is_refused(
    server: _Redis, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        _saved(strategy, source)
        RedisSink(source_at(source), server.url).write_next(0.0)
    with running(1) as cluster, cluster.strategy() as strategy:
        _saved(strategy, tmp_path / "other", seed=1)
    other = source_at(tmp_path / "other")
    before = server.client.hgetall("stratagem:rows:dynamic.weight")
    with pytest.raises(DifferentTrainingError, match="prefix=NAME"):
        RedisSink(other, server.url).write_next(0.0)
    assert server.client.hgetall("stratagem:rows:dynamic.weight") == before
    assert RedisSink(other, server.url + "?prefix=other").write_next(0.0)
    assert server.client.hlen("other:rows:dynamic.weight")
    server.client.config_set("maxmemory", 1)
    with pytest.raises(ResourceExhaustedError, match="give it more memory"):
        RedisSink(other, server.url + "?prefix=third").write_next(0.0)
    server.client.config_set("maxmemory", 0)
    server.client.hset("stratagem:version", "format", 2)
    with pytest.raises(FailedPreconditionError, match=r"has format 2; .* install a later one"):
        RedisSink(other, server.url).write_next(0.0)
    server.client.delete("stratagem:version")
    server.client.set("stratagem:version", "of another program")
    with pytest.raises(FailedPreconditionError, match="WRONGTYPE"):
        RedisSink(other, server.url).write_next(0.0)
    server.client.delete("stratagem:version")
    server.client.hset("stratagem:version", "of", "another program")
    with pytest.raises(FailedPreconditionError, match="not written by stratagem"):
        RedisSink(other, server.url).write_next(0.0)
    for url in ("http://there", "redis://there:port", "redis://there/?decode_responses=1"):
        with pytest.raises(InvalidArgumentError, match="is no URL of a Redis"):
            RedisSink(other, url)
    server.stop()
    server.start("--requirepass", "a secret")
    monkeypatch.setenv("STRATAGEM_REDIS_PASSWORD", "another secret")
    with pytest.raises(UnauthenticatedError, match="STRATAGEM_REDIS_PASSWORD"):
        RedisSink(other, server.url).write_next(0.0)
    monkeypatch.setenv("STRATAGEM_REDIS_PASSWORD", "a secret")
    sink = RedisSink(other, server.url)
    assert sink.write_next(0.0) and "secret" not in sink.name
    assert "secret" not in RedisSink(other, "redis://user:secret@there:1/0").name
    other.close()
