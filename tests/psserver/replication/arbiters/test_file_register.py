"""Views in files of one host."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from stratagem_deploy.processes.process import import_path
from stratagem_proto.errors import InvalidArgumentError, UnavailableError
from stratagem_proto.v1.replication_pb2 import View
from stratagem_psserver.persistence import folder as state_folder
from stratagem_psserver.replication.registers import arbiter_of
from stratagem_psserver.settings import ServerSettings
from tests.psserver.replication.arbiters.places import (
    Folder,
    arbiter_at,
    holding,
    settings_of,
    view,
)

PROCESSES, EPOCHS = 3, 30


def replaced(place: Folder, present: View | None, following: View) -> bool:
    return asyncio.run(arbiter_at(place).replace(present, following))


@pytest.fixture
def place(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "arbiter")


@pytest.mark.full("cluster tests have servers that compete for a file")
def test_of_several_processes_exactly_one_writes_each_epoch(tmp_path: Path) -> None:
    folder = tmp_path / "arbiter"
    program = [sys.executable, "-m", "tests.psserver.replication.arbiters.rivals"]
    rivals = [
        subprocess.Popen(
            [*program, str(folder), str(number), str(EPOCHS)],
            env=os.environ | import_path(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    won = [int(epoch) for rival in rivals for epoch in rival.communicate()[0].split()]
    assert [rival.returncode for rival in rivals] == [0] * PROCESSES
    assert sorted(won) == list(range(1, EPOCHS + 1))


def test_people_can_read_the_file(place: Folder, tmp_path: Path) -> None:
    assert replaced(place, None, view(1, 0, backup=1))
    content = json.loads((tmp_path / "arbiter/ps-0.json").read_text())
    assert content["epoch"] == "1"
    assert content["primary"]["address"] == "ps-0:2222"
    assert content["backup"]["index"] == 1
    assert sorted(os.listdir(tmp_path / "arbiter")) == ["ps-0.json", "ps-0.lock"]


def test_a_process_that_has_the_lock_and_does_nothing_is_named(
    place: Folder, tmp_path: Path
) -> None:
    assert replaced(place, None, view(1))
    arbiter = arbiter_at(place, seconds=0.2)
    with (
        holding(tmp_path / "arbiter/ps-0.lock"),
        pytest.raises(UnavailableError, match=r"locked by process 1 of elsewhere.*; end that"),
    ):
        asyncio.run(arbiter.replace(view(1), view(2)))
    # It was ended, and so the lock is free.
    assert replaced(place, view(1), view(2))


def test_views_are_read_while_a_process_has_the_lock(place: Folder, tmp_path: Path) -> None:
    assert replaced(place, None, view(1))
    with holding(tmp_path / "arbiter/ps-0.lock"):
        assert asyncio.run(arbiter_at(place).read()) == view(1)


def test_a_view_that_was_not_written_in_full_is_not_seen(place: Folder, tmp_path: Path) -> None:
    assert replaced(place, None, view(1))
    (tmp_path / "arbiter/ps-0.new").write_text('{"epoch": "2", "prim')
    assert asyncio.run(arbiter_at(place).read()) == view(1)
    assert replaced(place, view(1), view(2))


def test_a_view_is_on_disk_before_it_is_told(
    place: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    arbiter = arbiter_at(place)
    monkeypatch.setattr(os, "fsync", noted)
    assert asyncio.run(arbiter.replace(None, view(1)))
    assert synced == ["ps-0.new", "arbiter"]
    synced.clear()
    # Who has written it may have been killed before it was.
    assert asyncio.run(arbiter.read()) == view(1)
    assert synced == ["arbiter"]


def test_a_folder_that_was_removed_is_not_taken_for_one_without_views(
    place: Folder, tmp_path: Path
) -> None:
    arbiter = arbiter_at(place)
    (tmp_path / "arbiter").rmdir()
    for call in (arbiter.read(), arbiter.replace(None, view(1))):
        with pytest.raises(UnavailableError, match=r"No such file or directory; see"):
            asyncio.run(call)


def test_only_the_last_folder_of_the_path_is_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"No such file.*make the folder that it is in"):
        arbiter_of(settings_of(f"file:{tmp_path}/no/arbiter"))
    with pytest.raises(InvalidArgumentError, match="no folder; give one on a disk"):
        arbiter_of(settings_of("file:"))


def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> str:
    """A folder with a space in its name, of which the system says that it is a mount."""
    folder = tmp_path / "my arbiter"
    folder.mkdir(exist_ok=True)
    point = str(folder.resolve()).replace(" ", r"\040")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        f"99 27 0:50 / {point} rw,relatime shared:2 master:3 - {kind} a:/b rw\n"
    )
    monkeypatch.setattr(state_folder, "MOUNTS", mounts)
    return f"file:{folder}"


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "fuse", "9p"])
def test_a_folder_that_other_hosts_may_use_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arbiter = mounted(tmp_path, monkeypatch, kind)
    with pytest.raises(InvalidArgumentError, match=rf"is on {kind}, .* use --arbiter kubernetes:"):
        arbiter_of(settings_of(arbiter))


@pytest.mark.parametrize("kind", ["ext4", "xfs", "overlay", "fuseblk"])
def test_a_folder_on_a_disk_of_this_host_is_used(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arbiter = arbiter_of(settings_of(mounted(tmp_path, monkeypatch, kind)))
    assert asyncio.run(arbiter.read()) is None


def test_memory_keeps_views_of_replicas_that_keep_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arbiter = mounted(tmp_path, monkeypatch, "tmpfs")
    assert asyncio.run(arbiter_of(settings_of(arbiter)).read()) is None
    logged = ServerSettings(replicas=2, arbiter=arbiter, durability="log")
    with pytest.raises(InvalidArgumentError, match=r"in memory \(tmpfs\).*folder on a disk"):
        arbiter_of(logged)


def test_the_system_tells_what_is_in_memory() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        assert state_folder.file_system_of(Path(folder)) == "tmpfs"
