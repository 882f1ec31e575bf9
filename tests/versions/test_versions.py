"""Versions that a strategy publishes, and what a reader that follows its servers gets."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stratagem import OneDeviceStrategy, ParameterServerStrategy, get_strategy
from stratagem_deploy.watching.asking import ServerAnswer, ServerPlace
from stratagem_deploy.watching.rows import server_rows
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    StaleVersionError,
)
from stratagem_proto.v1.session_pb2 import ROLE_EVALUATOR, ROLE_OBSERVER
from stratagem_psserver.server import ParameterServer
from stratagem_rpc.serving.policy import parse_policy
from tests.client.clusters import Cluster
from tests.conftest import TOKEN
from tests.deploy.watching.test_metrics import scraped, value
from tests.psserver.wire import RawClient, status_of
from tests.versions.follower import Follower
from tests.versions.training import Training, cluster, followers, require_equal, started
from tests.waiting import eventually


def test_a_reader_has_each_version_to_the_bit_by_increments() -> None:
    with cluster() as (servers, found), found.strategy() as strategy:
        training, following = Training(strategy), followers(servers)
        versions = []
        for step in range(30):
            training.step()
            versions.append(strategy.publish())
            if step % 3 == 0:
                assert [one.follow(10.0) for one in following] == [versions[-1]] * 2
                require_equal(servers, following)
        assert versions == sorted({*versions})
        assert abs(versions[-1] - time.time() * 1000) < 60_000
        for one in following:
            assert one.increments == len(one.taken) - 1 > 20
        # Rows of the table made room for others: that a key is gone is no special case.
        items = [arena for arena in tables_of(servers) if arena.table.is_dynamic]
        assert items and all(arena.table.statistics().evicted_rows for arena in items)
        assert "norm.running_mean" in following[0].contents
        assert "norm.running_mean" not in following[1].contents


def tables_of(servers: list[ParameterServer]) -> list[Any]:
    return [
        variable.arena
        for server in servers
        for variable in server._state.store.variables()
        if variable.arena is not None and not variable.spec.slot_of
    ]


def test_an_increment_has_what_changed_and_no_more() -> None:
    with cluster() as (servers, found), found.strategy() as strategy:
        training, following = Training(strategy), followers(servers)
        training.step()
        strategy.publish()
        for one in following:
            one.follow(10.0)
        training.step(batch=2)
        strategy.publish()
        for one in following:
            listed = one.list(one.version, 10.0)
            part, _ = one.read(listed.latest, one.version)
            names = {each.spec.name: each for each in part.file.tensors}
            assert not [name for name in names if "Adam" in name or "exp_avg" in name]
            for name, each in names.items():
                if name.startswith("idle"):
                    assert each.changed.count == 0 and each.HasField("changed")
                if name.startswith("users"):
                    assert each.HasField("changed") and each.changed.count <= 2


def test_a_version_is_published_while_workers_train() -> None:
    with ExitStack() as stack:
        servers = [started(stack, task) for task in range(2)]
        found = Cluster([one.address for one in servers], 2)
        over, stopped = threading.Event(), threading.Event()

        def program(strategy: ParameterServerStrategy, worker: int) -> int:
            training = Training(strategy, worker)
            if worker:
                while not over.is_set():
                    training.step()
                stopped.set()
                return 0
            with strategy.publish_every(seconds=0.02) as publishing:
                steps = 0
                while len({*seen}) < 10 and steps < 2000:
                    training.step()
                    seen.append(publishing.version)
                    steps += 1
                over.set()
            assert publishing.error is None
            assert stopped.wait(60)
            return strategy.publish()

        seen: list[int] = []
        last, _ = found.run(program)
        assert [each for each in seen if each] == sorted(each for each in seen if each)
        assert len({*seen}) >= 10
        following = followers(servers)
        assert [one.follow(10.0) for one in following] == [last] * 2
        require_equal(servers, following)


def test_only_the_chief_publishes() -> None:
    with ExitStack() as stack:
        servers = [started(stack, task) for task in range(2)]
        found = Cluster([one.address for one in servers], 2)
        with (
            found.strategy(1) as worker,
            pytest.raises(
                FailedPreconditionError,
                match=r"/job:worker/task:1 called publish\(\), and only the chief",
            ),
        ):
            worker.publish()
    for strategy in (ParameterServerStrategy(), OneDeviceStrategy("cpu"), get_strategy()):
        with pytest.raises(FailedPreconditionError, match="this strategy has no cluster"):
            strategy.publish()
        with pytest.raises(FailedPreconditionError, match="this strategy has no cluster"):
            strategy.publish_every(0.2)
        with pytest.raises(FailedPreconditionError, match="this strategy has no cluster"):
            strategy.versions_behind(1)


def test_a_learner_knows_how_far_behind_a_version_is() -> None:
    with cluster() as (_, found):
        with found.strategy() as strategy:
            Training(strategy)
            versions = [strategy.publish() for _ in range(3)]
            assert list(map(strategy.versions_behind, versions)) == [2, 1, 0]
            for unknown in (versions[0] - 1, versions[-1] + 1):
                with pytest.raises(StaleVersionError, match=f"version {unknown} is none of"):
                    strategy.versions_behind(unknown)
        with found.strategy() as strategy:
            Training(strategy)
            strategy.publish()
            with pytest.raises(StaleVersionError, match="none of a program before"):
                strategy.versions_behind(versions[-1])


def test_publishing_takes_seconds_or_steps() -> None:
    with cluster() as (_, found), found.strategy() as strategy:
        for given in ({}, {"seconds": 1.0, "steps": 1}, {"seconds": 0.0}, {"steps": 0}):
            with pytest.raises(InvalidArgumentError, match="publish_every"):
                strategy.publish_every(**given)
        training = Training(strategy)
        with strategy.publish_every(steps=5) as publishing:
            training.step()
            assert not publishing.version
            for _ in range(5):
                training.step()
            eventually(lambda: bool(publishing.version))
        before = publishing.version
        for _ in range(10):
            training.step()
        assert publishing.version == before


def test_a_program_that_is_started_again_publishes_later_versions() -> None:
    with cluster() as (servers, found):
        numbers, following = [], followers(servers)
        for _ in range(3):
            with found.strategy() as strategy:
                training = Training(strategy)
                training.step()
                numbers.append(strategy.publish())
                assert following[0].follow(10.0) == following[1].follow(10.0) == numbers[-1]
        assert numbers == sorted({*numbers})
        require_equal(servers, following)
        assert [one.increments for one in following] == [2, 2]


@pytest.mark.unlogged
def test_a_second_publisher_is_refused_while_the_first_is_there() -> None:
    with cluster() as (servers, found), found.strategy() as strategy:
        training = Training(strategy)
        training.step()
        strategy.publish()
        for server in servers:
            # As if another process had published.
            server._state.publication._known.publisher = b"another process!"
        strategy.publish()  # which has no session
        other = next(iter(servers[1]._state.ledger.opened()))
        servers[1]._state.publication._known.publisher = b"another process!"
        other.process, kept = b"another process!", other.process
        try:
            with pytest.raises(FailedPreconditionError, match="two publishers would confuse"):
                strategy.publish()
        finally:
            other.process = kept


def test_versions_grow_over_servers_that_were_restored(tmp_path: Path) -> None:
    with cluster() as (servers, found), found.strategy() as strategy:
        training, following = Training(strategy), followers(servers)
        training.step()
        strategy.save(tmp_path)
        training.step()
        first = strategy.publish()
        for one in following:
            one.follow(10.0)
        strategy.restore(tmp_path)
        second = strategy.publish()
        assert [one.follow(10.0) for one in following] == [second] * 2
        require_equal(servers, following)
        training.step()
        third = strategy.publish()
        assert [one.follow(10.0) for one in following] == [third] * 2
        require_equal(servers, following)
        # After the restoration an increment has all rows, and then only some again.
        assert all(one.increments == 2 for one in following)
    with ExitStack() as stack:
        servers = [started(stack, task, restore=str(tmp_path)) for task in range(2)]
        assert first < second < third
        found = Cluster([one.address for one in servers], 1)
        with found.strategy() as strategy:
            training = Training(strategy)
            assert strategy.publish() > third
        new = followers(servers)
        for one, old in zip(new, following, strict=True):
            old.address = one.address
            assert one.follow(10.0) == old.follow(10.0)
        require_equal(servers, new)
        require_equal(servers, following)


@pytest.mark.unlogged
def test_a_version_that_not_all_servers_have_is_followed_by_one_that_they_have() -> None:
    with cluster() as (servers, found), found.strategy() as strategy:
        training, following = Training(strategy), followers(servers)
        training.step()
        first = strategy.publish()
        for one in following:
            one.follow(10.0)
        training.step()
        # As if the chief had ended between two servers.
        state = servers[0]._state
        half = first + 1_000_000

        def publish() -> None:
            from stratagem_proto.v1.publication_pb2 import PublishHeader

            header = PublishHeader(cut=b"c" * 16, version=half, published_at=half)
            state.publication.publish(header, state.store, (), b"")

        on_loop(servers[0], publish)
        training.step()
        last = strategy.publish()
        assert last == half + 1
        assert [one.follow(10.0) for one in following] == [last] * 2
        require_equal(servers, following)
        assert [one.increments for one in following] == [2, 1]


def on_loop(server: ParameterServer, act: Any) -> None:
    async def acted() -> None:
        act()

    server._loop.run(acted())


def test_a_reader_may_look_and_change_nothing() -> None:
    with cluster() as (servers, found), found.strategy() as strategy:
        Training(strategy).step()
        strategy.publish()
        with pytest.raises(PermissionDeniedError, match="ListVersions is not for"):
            Follower(servers[0].address, role=ROLE_OBSERVER).list()
        assert Follower(servers[0].address, role=ROLE_EVALUATOR).follow(10.0)
        with pytest.raises(NotFoundError, match="cannot send version 5 as a whole; its latest is"):
            [*Follower(servers[0].address).messages(5)]
        assert not [one for one in servers[0]._state.ledger.opened() if one.role == 8]


def test_increments_beyond_the_budget_are_not_kept() -> None:
    with cluster(publication_bytes=3000) as (servers, found), found.strategy() as strategy:
        training, following = Training(strategy), followers(servers)
        for _ in range(10):
            training.step(batch=2)
            last = strategy.publish()
        for server, one in zip(servers, following, strict=True):
            listed = one.list(last - 1, 10.0)
            increments = [each for each in listed.links if each.previous]
            assert len(increments) < 9
            assert sum(each.nbytes for each in increments) <= 3000
            assert one.follow() == last
            report = server._state.publication.report()
            assert report is not None and report.version == last and report.kept.limit == 3000
        require_equal(servers, following)


def test_status_and_figures_say_which_version_there_is() -> None:
    with cluster(metrics_bind="127.0.0.1:0") as (servers, found), found.strategy() as strategy:
        assert not scraped(servers[0])["stratagem_published_version"].samples
        Training(strategy).step()
        last = strategy.publish()
        Follower(servers[0].address).follow(10.0)
        with RawClient(servers[0].address, TOKEN) as client:
            status = status_of(client)
        assert status.parameter_server.publication.version == last
        assert status.parameter_server.publication.age_seconds < 60.0
        (row,) = server_rows([ServerAnswer(ServerPlace(servers[0].address), status)])
        assert f"version {last}, " in row.doing and row.doing.endswith(" old")
        # A page of figures counts for a moment.
        eventually(lambda: bool(scraped(servers[0])["stratagem_published_version"].samples))
        assert value(scraped(servers[0]), "stratagem_published_version") == last


def test_policies_say_who_publishes_and_who_reads_which_versions() -> None:
    rules = """
        worker/0 may read, update, assign, create, delete **
        worker/0 may publish
        evaluator may read users.*
        reader may read **
    """
    with (
        cluster(policy=parse_policy(rules, "rules")) as (servers, found),
        found.strategy() as strategy,
    ):
        Training(strategy).step()
        last = strategy.publish()
        reader = Follower(servers[0].address)
        assert reader.follow(10.0) == last
        evaluator = Follower(servers[0].address, role=ROLE_EVALUATOR)
        assert evaluator.list().latest == last
        with pytest.raises(PermissionDeniedError, match=r"ReadVersion is not for .* and not read"):
            evaluator.follow()
    rules = "worker/0 may read, update, assign, create, delete **"
    with cluster(policy=parse_policy(rules, "rules")) as (_, found), found.strategy() as strategy:
        Training(strategy).step()
        with pytest.raises(PermissionDeniedError, match="and not publish"):
            strategy.publish()
