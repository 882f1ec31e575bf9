"""Tasks that move between servers of this process."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from stratagem_proto.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    NotFoundError,
    NotPrimaryError,
    StratagemError,
)
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.variables.locks import LockUse
from tests.psserver.moves.servers import client_at, held_back, movable
from tests.psserver.persistence.servers import DURABILITIES
from tests.psserver.replication.arbiters.lease_server import Lease, LeaseServer
from tests.psserver.replication.pairs import report_of
from tests.psserver.wire import LARGE, encoded, optimizer_program, sgd, update_header
from tests.waiting import eventually

pytestmark = pytest.mark.unlogged


def adam() -> OptimizerProgram:
    parameter = torch.nn.Parameter(torch.zeros(5))
    return optimizer_program(torch.optim.Adam([parameter], lr=0.1), "adam")


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_task_moves_with_all_that_belongs_to_it(tmp_path: Path, durability: str) -> None:
    with movable(tmp_path, durability=durability) as cluster:
        home = cluster.servers[0].address
        with client_at(home) as client:
            client.create(w=torch.zeros(5), big=torch.ones(2 * LARGE))
            for number in range(20):
                client.update(adam(), {"w": torch.full((5,), float(number))})
            before = client.everything()
            view = cluster.move(0, 1)
            assert view.primary.index == 1
            assert cluster.tasks(0) == [] and cluster.tasks(1) == [0, 1]
            with client_at(view.primary.address, client) as again:
                assert again.everything() == before
                again.update(adam(), {"w": torch.ones(5)})


def test_a_stale_client_is_told_where_the_task_is(tmp_path: Path) -> None:
    with movable(tmp_path) as cluster, client_at(cluster.servers[0].address) as client:
        client.create(w=torch.zeros(5))
        view = cluster.move(0, 1)
        with pytest.raises(NotPrimaryError, match="the primary is at") as refused:
            client.read("w")
        assert (refused.value.primary, refused.value.epoch) == (view.primary.address, view.epoch)
        assert cluster.located(0, 0) == cluster.located(1, 0) == {0: view}


def test_a_task_moves_to_and_fro(tmp_path: Path) -> None:
    with movable(tmp_path, 3) as cluster, client_at(cluster.servers[0].address) as client:
        client.create(w=torch.zeros(5))
        for number in (1, 2, 0, 2, 1, 0):
            view = cluster.move(0, number)
            with client_at(view.primary.address, client) as again:
                again.update(sgd(), {"w": -torch.ones(5)})
                client.sequence = again.sequence
                (value,) = again.read("w")
        assert value.tolist() == [6.0] * 5
        # It is back where it began.
        assert view.primary.address == cluster.servers[0].address


def test_a_request_that_is_repeated_after_a_move_is_applied_once(tmp_path: Path) -> None:
    with movable(tmp_path) as cluster, client_at(cluster.servers[0].address) as client:
        client.create(w=torch.zeros(5))
        gradients = {"w": torch.ones(5)}
        messages = encoded(update_header(client.key(), sgd(), gradients), [gradients["w"]])
        first = client.upload("Update", messages, pb.UpdateResponse)
        before = client.everything()
        view = cluster.move(0, 1)
        with client_at(view.primary.address, client) as again:
            assert again.upload("Update", messages, pb.UpdateResponse) == first
            assert again.everything() == before


def test_a_task_takes_the_time_that_its_pace_allows(tmp_path: Path) -> None:
    with movable(tmp_path) as cluster, client_at(cluster.servers[0].address) as client:
        client.create(w=torch.ones(1 << 20))
        before, began = client.everything(), time.monotonic()
        view = cluster.move(0, 1, bytes_per_second=8 << 20)
        assert time.monotonic() - began >= 0.5
        with client_at(view.primary.address, client) as again:
            assert again.everything() == before


@pytest.mark.full("a pace and its waiting updates are tested apart, with less")
def test_a_pace_yields_to_updates_that_would_wait_for_room(tmp_path: Path) -> None:
    with movable(tmp_path) as cluster, client_at(cluster.servers[0].address) as client:
        client.create(w=torch.zeros(2 << 20))
        with ThreadPoolExecutor(1) as threads:
            moving = threads.submit(cluster.move, 0, 1, 60.0, bytes_per_second=1)
            eventually(lambda: cluster.described(1).HasField("taking"))
            ones, updates = torch.ones(2 << 20), 0
            while not moving.done():
                try:
                    client.update(sgd(1.0), {"w": ones})
                except NotPrimaryError:
                    break
                updates += 1
            view = moving.result()
        with client_at(view.primary.address, client) as again:
            (value,) = again.read("w")
        # The one that was refused may have come to the other server before.
        assert updates > 8 and value.unique().tolist() in ([-updates], [-updates - 1])


def test_a_task_that_is_there_already_stays(tmp_path: Path) -> None:
    with movable(tmp_path) as cluster:
        before = cluster.located(0)
        cluster.move(0, 0)
        assert cluster.located(0) == before


def test_a_server_that_is_to_end_takes_nothing(tmp_path: Path) -> None:
    with movable(tmp_path) as cluster:
        before = cluster.located(0)
        cluster.drain(1)
        with pytest.raises(FailedPreconditionError, match="server 1 takes no tasks"):
            cluster.move(0, 1)
        assert cluster.located(0) == before
        cluster.drain(1, draining=False)
        assert cluster.move(0, 1).primary.index == 1


def test_a_task_that_nobody_has_begun_does_not_move(tmp_path: Path) -> None:
    with movable(tmp_path) as cluster:
        with pytest.raises(NotFoundError, match="no server has begun /job:ps/task:7"):
            cluster.move(7, 1)
        assert cluster.tasks(1) == [1]


def test_a_server_with_other_settings_is_refused(tmp_path: Path) -> None:
    with movable(tmp_path) as cluster:
        cluster.start(2, durability="log", durability_folder=str(tmp_path))
        before = cluster.located(0)
        with pytest.raises(FailedPreconditionError, match="--durability log, but the primary none"):
            cluster.move(0, 2)
        assert cluster.located(0) == before


def test_a_task_stays_if_its_next_server_vanishes_before_the_handover(tmp_path: Path) -> None:
    with (
        movable(tmp_path, 0) as cluster,
        cluster.relay(0) as relay,
        ThreadPoolExecutor(1) as threads,
    ):
        source = cluster.start(0, advertise=f"127.0.0.1:{relay.port}")
        cluster.start(1)
        with client_at(source.address) as client:
            client.create(w=torch.ones(5))
            with held_back(source):
                moving = threads.submit(cluster.move, 0, 1)
                eventually(lambda: "read from snapshots" in report_of(source).trouble)
                # Nobody hears that it ends.
                relay.hold()
                cluster.servers[1].stop(grace=0)
            with pytest.raises(StratagemError):
                moving.result()
            # The source still takes it for living, and asks for its part in the task.
            eventually(lambda: report_of(source).view.epoch > 2, 20.0)
            client.update(sgd(), {"w": -torch.ones(5)})
            (value,) = client.read("w")
        assert value.tolist() == [2.0] * 5


def test_a_task_does_not_move_while_a_client_reads_from_a_snapshot(tmp_path: Path) -> None:
    with movable(tmp_path) as cluster, client_at(cluster.servers[0].address) as client:
        client.create(w=torch.zeros(5))
        with held_back(cluster.servers[0]):
            with pytest.raises(DeadlineExceededError, match="stays where it is"):
                cluster.move(0, 1, seconds=1.0)
            (task,) = cluster.described(0).tasks
            assert "read from snapshots" in task.obstacle
        assert cluster.move(0, 1).primary.index == 1


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_server_that_comes_back_serves_what_it_had(tmp_path: Path, durability: str) -> None:
    with movable(tmp_path, durability=durability) as cluster:
        with client_at(cluster.servers[0].address) as client:
            client.create(w=torch.ones(5))
            cluster.move(0, 1)
        cluster.servers[1].stop(grace=0)
        cluster.start(1)
        eventually(lambda: cluster.tasks(1) == [0, 1])
        with client_at(cluster.located(0, 0)[0].primary.address, client) as again:
            assert len(again.listing()) == (1 if durability == "log" else 0)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_server_that_comes_back_leaves_to_others_what_has_moved(
    tmp_path: Path, durability: str
) -> None:
    with (
        movable(tmp_path, durability=durability) as cluster,
        client_at(cluster.servers[0].address) as client,
    ):
        client.create(w=torch.ones(5))
        view = cluster.move(0, 1)
        cluster.servers[0].stop(grace=0)
        cluster.start(0)
        with client_at(view.primary.address, client) as again:
            again.update(sgd(), {"w": torch.ones(5)})
            client.sequence = again.sequence
        assert cluster.located(0, 0) == {0: view}
        back = cluster.move(0, 0)
        with client_at(back.primary.address, client) as again:
            assert again.read("w")[0].tolist() == [0.0] * 5


def test_a_server_without_the_arbiter_does_not_go_on_with_the_log_of_one_that_had_it(
    tmp_path: Path,
) -> None:
    with movable(tmp_path, durability="log") as cluster:
        cluster.move(0, 1)
    settings = ServerSettings(durability="log", durability_folder=str(tmp_path))
    with (
        pytest.raises(FailedPreconditionError, match="start it with that --arbiter"),
        ParameterServer(settings),
    ):
        pass


def test_what_is_applied_too_late_is_not_acknowledged_and_counts_once(tmp_path: Path) -> None:
    with (
        movable(tmp_path) as cluster,
        client_at(cluster.servers[0].address) as client,
        ThreadPoolExecutor(2) as threads,
    ):
        client.create(w=torch.zeros(5), big=torch.zeros(LARGE))
        source = cluster.servers[0]
        state, loop = source._state, source._loop
        lock = state.locked(["big"], LockUse("somebody", "test"))

        async def unlock() -> None:
            lock.release()

        # The other server has all of the task, and may not take it over yet.
        with held_back(source):
            moving = threads.submit(cluster.move, 0, 1)
            eventually(lambda: "read from snapshots" in report_of(source).trouble)
            # An update that waits here until the task has moved.
            loop.run(lock.acquire())
            gradients = {"big": -torch.ones(LARGE)}
            messages = encoded(update_header(client.key(), sgd(), gradients), [gradients["big"]])
            late = threads.submit(client.upload, "Update", messages, pb.UpdateResponse)
            eventually(lambda: vars(state.mutations)["_applying"] == 1)
        view = moving.result()
        loop.run(unlock())
        with pytest.raises(NotPrimaryError):
            late.result()
        with client_at(view.primary.address, client) as again:
            again.upload("Update", messages, pb.UpdateResponse)
            assert again.read("big")[0].unique().tolist() == [1.0]


def test_a_task_stays_if_its_next_server_ends_before_the_arbiter_grants_the_move(
    tmp_path: Path, leases: LeaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    arbiter = "kubernetes:training/movies"
    with movable(tmp_path, arbiter=arbiter) as cluster, ThreadPoolExecutor(1) as threads:
        asked, home = threading.Event(), cluster.servers[0].address
        replace = leases.replace

        def grant_none_but_home(name: str, lease: Lease) -> tuple[int, Lease | str]:
            if lease["spec"].get("holderIdentity") == home:
                return replace(name, lease)
            asked.set()
            return 503, "Refused"

        with client_at(home) as client:
            client.create(w=torch.ones(5))
            monkeypatch.setattr(leases, "replace", grant_none_but_home)
            moving = threads.submit(cluster.move, 0, 1)
            assert asked.wait(20.0)
            cluster.servers[1].stop(grace=0)
            with pytest.raises(StratagemError):
                moving.result()
            eventually(lambda: cluster.tasks(0) == [0], 20.0)
            client.update(sgd(), {"w": -torch.ones(5)})
            (value,) = client.read("w")
    assert value.tolist() == [2.0] * 5


def test_nothing_is_acknowledged_that_a_backup_lacks_which_may_have_been_granted(
    tmp_path: Path, leases: LeaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    arbiter = "kubernetes:training/movies"
    with movable(tmp_path, arbiter=arbiter) as cluster, ThreadPoolExecutor(2) as threads:
        asked, source = threading.Event(), cluster.servers[0]

        def grant_none(name: str, lease: Lease) -> tuple[int, Lease | str]:
            asked.set()
            return 503, "Refused"

        with client_at(source.address) as client:
            client.create(w=torch.ones(5))
            with monkeypatch.context() as away:
                away.setattr(leases, "replace", grant_none)
                moving = threads.submit(cluster.move, 0, 1)
                assert asked.wait(20.0)
                cluster.servers[1].stop(grace=0)
                eventually(lambda: report_of(source).silent_seconds == 0.0)
                updating = threads.submit(client.update, sgd(), {"w": -torch.ones(5)})
                (variable,) = source._state.store.variables()
                eventually(lambda: variable.version > 0)
                cluster.described(0)
                assert not updating.done()
            updating.result()
        with pytest.raises(StratagemError):
            moving.result()
