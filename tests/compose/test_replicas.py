"""The demo in containers, some of whose servers are lost for good or for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from stratagem_proto.v1.replication_pb2 import View
from stratagem_psserver.replication.arbiter import view_of
from tests.compose.project import Project
from tests.compose.training import checkpoints
from tests.demo import CLOSE, DEMO_RMSE, demo_error
from tests.waiting import eventually

pytestmark = pytest.mark.compose

PATIENCE = 400.0


def view(project: Project, task: int) -> View:
    """The present view of a task, as any server finds it."""
    path = f"/arbiter/ps-{task}.json"
    for server in ("ps-0", "ps-0-replica-1"):
        if text := project.inside(server, "cat", path):
            return view_of(text, path)
    raise AssertionError(f"no server can read {path}")


def service(address: str) -> str:
    return address.partition(":")[0]


def has_backup(project: Project, task: int) -> bool:
    return view(project, task).HasField("backup")


def starts_to_train(project: Project) -> None:
    started = project.up("--detach")
    assert started.returncode == 0, started.stderr
    eventually(lambda: checkpoints(project) >= 1, PATIENCE, poll=0.5)


def backup_takes_over(project: Project, task: int, lose: Callable[[str], None]) -> str:
    """Loses the primary, and returns its service once the backup has taken over."""
    eventually(lambda: has_backup(project, task), PATIENCE, poll=0.5)
    former = view(project, task)
    lost = service(former.primary.address)
    lose(lost)
    began = time.monotonic()
    eventually(lambda: view(project, task).primary == former.backup, PATIENCE, poll=0.2)
    assert view(project, task).epoch > former.epoch
    print(f"\n{lost} was lost, and replaced within {time.monotonic() - began:.1f} s")
    return lost


def ends_well(project: Project) -> None:
    """Waits for the end of a training to which nothing has happened, as its workers see it."""
    assert project.exit_code("worker-0") == 0
    assert project.exit_code("worker-1") == 0
    for worker in ("worker-0", "worker-1"):
        assert project.restarts(worker) == 0
        assert "restarted" not in project.logs(worker), "of a server, with less than it had"
    found = demo_error(project.logs("worker-0"))
    print(f"test RMSE {found}")
    assert abs(found - DEMO_RMSE) < CLOSE


def test_primaries_that_are_killed_are_replaced_and_come_back_as_backups(
    replicated_project: Project,
) -> None:
    project = replicated_project
    starts_to_train(project)
    killed = backup_takes_over(project, 0, project.kill)
    crashed = backup_takes_over(project, 1, project.crash)
    project.start(killed)
    eventually(lambda: has_backup(project, 0) and has_backup(project, 1), PATIENCE, poll=0.5)
    ends_well(project)
    assert project.restarts(crashed) == 1


def test_a_primary_that_was_cut_off_is_replaced_and_comes_back_as_the_backup(
    replicated_project: Project,
) -> None:
    project = replicated_project
    starts_to_train(project)
    lost = backup_takes_over(project, 0, project.cut)
    project.heal(lost)
    eventually(lambda: has_backup(project, 0), PATIENCE, poll=0.5)
    assert service(view(project, 0).backup.address) == lost
    ends_well(project)
    assert project.restarts(lost) == 0
