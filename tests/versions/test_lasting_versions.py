"""Versions of servers that are restarted, taken over or moved."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from stratagem_deploy.processes.resources import ReservedAddresses
from stratagem_proto.v1.publication_pb2 import VersionLink
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.clusters import Cluster
from tests.client.servers.replicated import ReplicatedServer
from tests.conftest import TOKEN
from tests.psserver.moves.servers import movable
from tests.psserver.persistence.servers import killed
from tests.versions.follower import Follower
from tests.versions.training import Training, followers, require_equal

pytestmark = pytest.mark.unlogged


def logged(stack: ExitStack, folder: Path, places: ReservedAddresses) -> list[ParameterServer]:
    return [
        stack.enter_context(
            ParameterServer(
                ServerSettings(
                    task=task,
                    bind=places.replicas[task],
                    token=TOKEN,
                    durability="log",
                    durability_folder=str(folder),
                )
            )
        )
        for task in range(2)
    ]


def evicted(servers: Sequence[ParameterServer]) -> int:
    """How many rows of the table of any keys had to make room."""
    arenas = [each.arena for server in servers for each in server._state.store.variables()]
    return sum(arena.table.statistics().evicted_rows for arena in arenas if arena is not None)


def parts(one: Follower, links: list[VersionLink]) -> list[bytes]:
    return [one.read(link.version, link.previous)[1] for link in links]


def test_a_server_that_is_restarted_with_its_log_has_the_same_versions(tmp_path: Path) -> None:
    (folder := tmp_path / "log").mkdir()
    with ExitStack() as stack:
        places = stack.enter_context(ReservedAddresses(2))
        with ExitStack() as first:
            servers = logged(first, folder, places)
            found = Cluster([one.address for one in servers], 1)
            with found.strategy() as strategy:
                training = Training(strategy)
                for _ in range(5):
                    training.step(batch=24)
                    last = strategy.publish()
                assert evicted(servers)
                following = followers(servers)
                for one in following:
                    assert one.follow(10.0) == last
                listed = [[*one.list().links] for one in following]
                content = [parts(one, links) for one, links in zip(following, listed, strict=True)]
                training.step()  # which the restarted servers have beyond the version
                left = killed(folder)
        servers = logged(stack, left, places)
        for one, links, bytes_of in zip(following, listed, content, strict=True):
            assert [*one.list(last - 1, 10.0).links] == links
            assert parts(one, links) == bytes_of
        with found.strategy() as strategy:
            training = Training(strategy, seed=1)
            training.step()
            assert (later := strategy.publish()) > last
        assert [one.follow(10.0) for one in following] == [later] * 2
        assert [one.increments for one in following] == [1, 1]
        require_equal(servers, following)


def test_what_was_restored_before_a_restart_is_in_the_next_version(tmp_path: Path) -> None:
    """Also where the log of the restoration has begun anew, so that no version is left in it."""
    (folder := tmp_path / "log").mkdir()
    with ExitStack() as stack:
        places = stack.enter_context(ReservedAddresses(2))
        with ExitStack() as first:
            servers = logged(first, folder, places)
            found = Cluster([one.address for one in servers], 1)
            with found.strategy() as strategy:
                training, following = Training(strategy), followers(servers)
                training.step()
                strategy.save(tmp_path / "kept")
                for _ in range(4):
                    training.step(batch=24)
                    last = strategy.publish()
                    assert [one.follow(10.0) for one in following] == [last] * 2
                assert evicted(servers)
                strategy.restore(tmp_path / "kept")
                training.step()
                left = killed(folder)
        servers = logged(stack, left, places)
        with found.strategy() as strategy:
            training = Training(strategy, seed=1)
            for _ in range(3):
                training.step(batch=24)
                assert (later := strategy.publish()) > last
                assert [one.follow(10.0) for one in following] == [later] * 2
                require_equal(servers, following)


def test_readers_go_on_by_increments_when_a_backup_has_taken_over(tmp_path: Path) -> None:
    with ExitStack() as stack:
        replicated = ReplicatedServer(tmp_path, stack)
        with replicated.strategy() as strategy:
            training = Training(strategy)
            training.step()
            strategy.save(tmp_path / "kept")
            one = Follower(replicated.primary.address)
            for _ in range(3):
                training.step(batch=24)
                version = strategy.publish()
                assert one.follow(10.0) == version
            assert evicted([replicated.primary])
            strategy.restore(tmp_path / "kept")
            training.step()
            replicated.await_backup()
            replicated.end(replicated.primary)
            training.step()
            later = strategy.publish()
            assert later > version
            one.address = replicated.primary.address
            assert one.follow(10.0) == later
            assert (one.increments, len(one.taken)) == (3, 4)
            require_equal([replicated.primary], [one])


def test_a_task_that_has_moved_publishes_right_on(tmp_path: Path) -> None:
    with movable(tmp_path, 2) as servers:
        found = Cluster(servers.addresses, 1)
        with found.strategy() as strategy:
            training = Training(strategy)
            following = [Follower(address) for address in servers.addresses]
            for number in (1, 0, 1):
                training.step()
                version = strategy.publish()
                assert [one.follow(10.0) for one in following] == [version] * 2
                servers.move(0, number)
                training.step()
                version = strategy.publish()
                assert [one.follow(10.0) for one in following] == [version] * 2
            # All but the first of each, also behind the moves, in which tables have all rows.
            assert [len(one.taken) - one.increments for one in following] == [1, 1]
