"""A server that has lost what it had answered is found, by itself or by who knows better."""

from __future__ import annotations

import random
import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.client.servers.lost_ends import Trial
from tests.client.servers.remembering import At, LoggedServer, Program, faults_of
from tests.conftest import TOKEN
from tests.full import a_few
from tests.psserver.moves.servers import movable
from tests.psserver.replication.pairs import await_primary, pair


@a_few("seed", range(4), "one draw is as good as another before a commit")
def test_no_program_goes_on_with_less_than_it_was_told(tmp_path: Path, seed: int) -> None:
    trial = Trial(tmp_path, seed)
    trial.run()
    assert trial.faults == []
    assert trial.damages == 5


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_no_program_goes_on_with_less_than_it_was_told_at_2000_damages() -> None:
    damages, seed = 0, random.randrange(1 << 32)
    while damages < 2000:
        with TemporaryDirectory() as root:
            trial = Trial(Path(root), seed)
            trial.run()
        assert trial.faults == [], f"seed {seed}"
        damages, seed = damages + trial.damages, seed + 1


def test_an_older_image_without_a_log_is_found(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = LoggedServer(tmp_path, stack, durability="snapshot")
        program = Program(server, stack)
        program.add()
        server.stop()
        older = server.copied()
        server.start()
        program.add()
        server.stop()
        server.folder = older
        server.start()
        assert server.look() == 1
        assert [*faults_of(program, 1)] == []


@pytest.mark.cluster
def test_an_older_copy_is_found_after_a_takeover(tmp_path: Path) -> None:
    with pair(tmp_path, durability="log", token=TOKEN) as replicas, ExitStack() as stack:
        first, second = replicas.await_backup()
        addresses = ",".join(server.address for server in replicas.servers.values())
        program = Program(At(addresses), stack)
        program.add()
        number = second.settings.replica
        state = tmp_path / f"ps-0-replica-{number}"
        older = shutil.copytree(state, tmp_path / "older")
        program.add()
        replicas.crash(first)
        await_primary(second)
        program.add()
        program.read()
        assert program.known == 3
        replicas.crash(second)
        shutil.rmtree(state)
        older.rename(state)
        replicas.start(number)
        assert [*faults_of(program, 1)] == []


@pytest.mark.cluster
def test_an_older_copy_is_found_where_a_task_has_moved_to(tmp_path: Path) -> None:
    with movable(tmp_path, durability="log") as servers, ExitStack() as stack:
        program = Program(At(*servers.addresses), stack)
        program.add()
        assert program.variable.device_name.split("/")[3] == "task:0"
        servers.move(0, 1)
        program.add()
        servers.servers[1].stop(grace=0)
        state = tmp_path / "ps-0-server-1"
        older = shutil.copytree(state, tmp_path / "older")
        servers.start(1)
        for _ in range(3):
            program.add()
        servers.servers[1].stop(grace=0)
        shutil.rmtree(state)
        older.rename(state)
        servers.start(1)
        assert [*faults_of(program, 2)] == []
