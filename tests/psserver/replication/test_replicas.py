"""Two replicas of a task, one of which ends."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stratagem_proto.errors import NotPrimaryError, StratagemError, UnavailableError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.replication_pb2 import FollowRequest, Replica, Standing, View
from stratagem_psserver.persistence.persistence import present_kernels
from stratagem_psserver.replication.calls import GrpcPeers
from stratagem_psserver.replication.registers import arbiter_of
from stratagem_psserver.replication.replica import introduction_of
from stratagem_psserver.server import ParameterServer
from tests.psserver.persistence.servers import DURABILITIES, client_of
from tests.psserver.replication.pairs import (
    pair,
    report_of,
    standing_of,
    state_of_backup,
    state_of_primary,
)
from tests.psserver.wire import LARGE, RawClient, encoded, optimizer_program, update_header
from tests.relays import Relay
from tests.waiting import eventually

pytestmark = pytest.mark.unlogged


def adam() -> Any:
    parameter = torch.nn.Parameter(torch.zeros(5))
    return optimizer_program(torch.optim.Adam([parameter], lr=0.1), "adam")


def trained(client: RawClient, steps: int = 20) -> None:
    """Steps a variable with an optimizer that has state."""
    program = adam()
    for number in range(steps):
        client.update(program, {"w": torch.full((5,), float(number))})


def await_primary(server: ParameterServer) -> None:
    eventually(lambda: standing_of(server) == Standing.STANDING_PRIMARY)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_backup_takes_over_with_all_that_was_acknowledged(
    tmp_path: Path, durability: str
) -> None:
    with pair(tmp_path, durability=durability) as both:
        primary, backup = both.await_backup()
        with client_of(primary) as client:
            incarnation = client.open().incarnation
            client.create(w=torch.zeros(5), big=torch.ones(2 * LARGE))
            trained(client)
            before = client.everything()
            both.crash(primary)
            await_primary(backup)
            with client_of(backup, client) as again:
                assert again.open().incarnation == incarnation
                assert again.everything() == before
                trained(again)


def test_a_request_that_is_repeated_at_the_new_primary_is_applied_once(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        primary, backup = both.await_backup()
        with client_of(primary) as client:
            client.create(w=torch.zeros(5))
            gradients = {"w": torch.ones(5)}
            header = update_header(client.key(), adam(), gradients)
            messages = encoded(header, list(gradients.values()))
            first = client.upload("Update", messages, pb.UpdateResponse)
            before = client.everything()
            both.crash(primary)
            await_primary(backup)
            with client_of(backup, client) as again:
                assert again.upload("Update", messages, pb.UpdateResponse) == first
                assert again.everything() == before


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_backup_equals_its_primary_to_the_bit(tmp_path: Path, durability: str) -> None:
    with pair(tmp_path, durability=durability) as both:
        primary, backup = both.await_backup()
        with client_of(primary) as client:
            client.create(w=torch.zeros(5), v=torch.ones(2, 2))
            trained(client)
            client.assign("v", torch.rand(2, 2))
            assert state_of_backup(backup) == state_of_primary(primary)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_backup_that_comes_late_gets_an_image(tmp_path: Path, durability: str) -> None:
    with pair(tmp_path, durability=durability) as both:
        primary, backup = both.await_backup()
        index = report_of(backup).replica.index
        with client_of(primary) as client:
            client.create(w=torch.zeros(5), v=torch.ones(2 * LARGE))
            both.crash(backup)
            trained(client)
            both.start(index)
            trained(client)
            primary, backup = both.await_backup()
            trained(client)
            assert state_of_backup(backup) == state_of_primary(primary)
            before = client.everything()
            both.crash(primary)
            await_primary(backup)
            with client_of(backup, client) as again:
                assert again.everything() == before


def test_updates_go_on_when_the_backup_is_lost(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        primary, backup = both.await_backup()
        with client_of(primary) as client:
            client.create(w=torch.zeros(5))
            both.crash(backup)
            trained(client)
            assert not report_of(primary).view.HasField("backup")


def test_a_primary_that_is_stopped_leaves_to_its_backup(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        primary, backup = both.await_backup()
        epoch = report_of(primary).view.epoch
        with client_of(primary) as client:
            client.create(w=torch.zeros(5))
            trained(client)
            before = client.everything()
            primary.stop(grace=5)
            await_primary(backup)
            view = report_of(backup).view
            assert view.epoch == epoch + 1 and not view.HasField("backup")
            with client_of(backup, client) as again:
                assert again.everything() == before


def test_a_backup_refuses_clients_and_names_the_primary(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        primary, backup = both.await_backup()
        with (
            pytest.raises(NotPrimaryError, match="serves no clients") as refused,
            client_of(backup),
        ):
            pass
        assert refused.value.primary == primary.address
        assert refused.value.epoch == report_of(primary).view.epoch


def test_a_primary_whose_backup_has_taken_over_answers_nothing(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        primary, backup = both.await_backup()
        view = report_of(primary).view
        with client_of(primary) as client:
            client.create(w=torch.zeros(5))
            # As if the backup had found the primary silent.
            taken_over = View(epoch=view.epoch + 1, primary=view.backup)
            arbiter = arbiter_of(primary.settings)
            assert primary._loop.run(arbiter.replace(view, taken_over))
            primary._loop.run(arbiter.close())
            both.crash(backup)
            with pytest.raises(UnavailableError):
                client.assign("w", torch.ones(5))
            with pytest.raises(UnavailableError):
                client.read("w")
            eventually(lambda: standing_of(primary) == Standing.STANDING_CATCHING_UP)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_former_primary_comes_back_as_the_backup(tmp_path: Path, durability: str) -> None:
    with pair(tmp_path, durability=durability) as both:
        primary, backup = both.await_backup()
        index = report_of(primary).replica.index
        with client_of(primary) as client:
            client.create(w=torch.zeros(5))
            both.crash(primary)
            await_primary(backup)
            both.start(index)
            leads, follows = both.await_backup()
            assert leads is backup
            with client_of(leads, client) as again:
                trained(again)
                assert state_of_backup(follows) == state_of_primary(leads)


def test_both_replicas_come_back_from_their_disks(tmp_path: Path) -> None:
    with pair(tmp_path, durability="log") as both:
        primary, backup = both.await_backup()
        with client_of(primary) as client:
            client.create(w=torch.zeros(5))
            trained(client)
            before = client.everything()
            for server in (primary, backup):
                both.crash(server)
            for index in (0, 1):
                both.start(index)
            leads, _ = both.await_backup()
            with client_of(leads, client) as again:
                assert again.everything() == before


def test_what_a_run_has_asked_of_the_arbiter_is_void_once_the_next_one_leads(
    tmp_path: Path,
) -> None:
    with pair(tmp_path, first=[0], durability="log") as both:
        first = both.servers[0]
        eventually(lambda: standing_of(first) == Standing.STANDING_PRIMARY)
        before = report_of(first).view
        both.crash(first)
        second = both.start(0)
        eventually(lambda: standing_of(second) == Standing.STANDING_PRIMARY)
        after = report_of(second).view
        assert after.primary.instance == before.primary.instance
        assert after.epoch > before.epoch


def test_a_second_process_with_the_number_of_a_replica_does_not_replace_it(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        primary, backup = both.await_backup()
        view = report_of(primary).view
        for server in (primary, backup):
            with ParameterServer(replace(server.settings, bind="127.0.0.1:0")) as second:
                eventually(lambda: "stop one of the two" in report_of(second).trouble)
        assert report_of(primary).view == view


def test_a_process_that_greets_connections_late_is_there_all_the_same(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        primary, _ = both.await_backup()
        peers = GrpcPeers(primary.settings)
        with Relay(int(primary.address.rpartition(":")[2])) as relay:
            relay.hold()
            threading.Timer(0.4, relay.release).start()
            found = primary._loop.run(peers.instance_at(f"127.0.0.1:{relay.port}"))
        assert found == report_of(primary).replica.instance


def test_replicas_do_not_go_on_with_an_arbiter_that_knows_nothing(tmp_path: Path) -> None:
    with pair(tmp_path, durability="log") as both:
        primary, backup = both.await_backup()
        for server in (primary, backup):
            both.crash(server)
        shutil.rmtree(tmp_path / "arbiter")
        again = both.start(0)
        eventually(lambda: "the arbiter knows of none" in report_of(again).trouble)


def test_a_backup_that_ended_while_an_image_came_starts_again(tmp_path: Path) -> None:
    with pair(tmp_path, durability="log") as both:
        primary, backup = both.await_backup()
        index = report_of(backup).replica.index
        both.crash(backup)
        folder = tmp_path / f"ps-0-replica-{index}"
        # As `Backup` leaves it in the midst of an image, whose files come in this order.
        (folder / "replica").unlink()
        shutil.rmtree(folder / "images")
        (folder / "images").mkdir()
        (folder / "images" / "latest").write_text("checkpoint-1")
        both.start(index)
        assert both.await_backup()[0] is primary


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"task": 1}, "is of /job:ps/task:1, and cannot be the backup"),
        ({"durability": "log"}, "has --durability log, but the primary none"),
        ({"arbiter": "etcd:a:1,b:2/x"}, "has --arbiter etcd:a:1,b:2/x, but the primary file:/"),
        ({"token": "another cluster's secret"}, "has no cluster token, unlike this program"),
    ],
)
def test_replicas_that_do_not_fit_are_refused(
    tmp_path: Path, others: dict[str, Any], why: str
) -> None:
    with pair(tmp_path) as both:
        primary, backup = both.await_backup()
        index = report_of(backup).replica.index
        both.crash(backup)
        view = report_of(primary).view
        replica = Replica(index=index, instance=b"other", address="127.0.0.1:1")
        settings = replace(backup.settings, **others)
        introduction = introduction_of(settings, replica, present_kernels())

        async def follow() -> None:
            call = GrpcPeers(settings).call(primary.address)
            try:
                await call.send(FollowRequest(introduction=introduction))
                while True:
                    await call.receive()
            finally:
                await call.close()

        with pytest.raises(StratagemError, match=why):
            primary._loop.run(follow())
        eventually(lambda: not report_of(primary).view.HasField("backup"))
        assert report_of(primary).view.primary == view.primary
