"""A server that comes back from its log."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stratagem_proto.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    StratagemError,
)
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_SET
from stratagem_psserver.persistence import folder as log_folder
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import Durability, ServerSettings
from stratagem_rpc.serving.process import LoopThread
from stratagem_storage.log import WRITTEN, Entry, LogReader, Written, encode_batch
from tests.psserver.persistence.servers import client_of, end_of, killed, logged, segments
from tests.psserver.wire import RawClient, encoded, optimizer_program, update_header


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir()
    return path


def trained(client: RawClient, steps: int = 20) -> None:
    """Creates two variables and steps one of them."""
    parameter = torch.nn.Parameter(torch.zeros(5))
    program = optimizer_program(torch.optim.Adam([parameter], lr=0.1), "adam")
    client.create(w=torch.zeros(5), v=torch.ones(2, 2))
    for number in range(steps):
        client.update(program, {"w": torch.full((5,), float(number))})
    client.assign("v", torch.full((2, 2), 7.0))


def test_all_that_was_answered_is_there_after_a_kill(folder: Path) -> None:
    with logged(folder) as server, client_of(server) as client:
        trained(client)
        before = client.everything()
        with logged(killed(folder)) as other, client_of(other, client) as again:
            assert again.everything() == before


def test_a_request_that_is_repeated_after_a_kill_is_applied_once(folder: Path) -> None:
    with logged(folder) as server, client_of(server) as client:
        client.create(w=torch.zeros(5))
        parameter = torch.nn.Parameter(torch.zeros(5))
        program = optimizer_program(torch.optim.SGD([parameter], lr=1.0), "sgd")
        gradients = {"w": torch.ones(5)}
        header = update_header(client.key(), program, gradients)
        messages = encoded(header, list(gradients.values()))
        first = client.upload("Update", messages, pb.UpdateResponse)
        with logged(killed(folder)) as other, client_of(other, client) as again:
            assert again.upload("Update", messages, pb.UpdateResponse) == first
            (value,) = again.read("w")
    assert value.tolist() == [-1.0] * 5


def test_a_server_that_was_stopped_replays_nothing(folder: Path) -> None:
    with logged(folder) as server, client_of(server) as client:
        trained(client)
        before = client.everything()
    for path in segments(folder):
        path.unlink()
    with logged(folder) as server, client_of(server, client) as again:
        assert again.everything() == before


def test_images_replace_what_was_logged_before(folder: Path) -> None:
    with (
        logged(folder, log_records=10, reconnect_seconds=0.4) as server,
        client_of(server) as client,
    ):
        trained(client)
        first = segments(folder)[0]
        while first.exists():
            client.assign("v", torch.rand(2, 2))
        before = client.everything()
        with logged(killed(folder)) as other, client_of(other, client) as again:
            assert again.everything() == before


def test_what_earlier_processes_have_logged_counts_as_well(folder: Path) -> None:
    most = 1 << 20
    with logged(folder) as server, client_of(server) as client:
        client.create(v=torch.zeros(most // 4))
        left = killed(folder)
    with (
        logged(left, log_bytes=most, reconnect_seconds=0.4) as server,
        client_of(server, client) as again,
    ):
        first = segments(left)[0]
        while first.exists():
            again.assign("v", torch.ones(1), ASSIGN_MODE_SET, torch.zeros(1, dtype=torch.int64))
    # The file of a segment that was used before has its size.
    assert sum(path.stat().st_size for path in segments(left)) <= most


def test_an_end_that_was_not_written_in_full_is_cut_off(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stratagem_server")
    with logged(folder) as server, client_of(server) as client:
        trained(client, steps=3)
        copy = killed(folder)
    path, state = segments(copy)[-1], copy / "ps-0"
    left = LogReader([path])
    deque(left.records(), 0)
    batch = b"".join(encode_batch(left.position + 1, [Entry(b"more"), Entry(b"and more")]))
    path.write_bytes(path.read_bytes()[: end_of(path)] + batch[:-1])
    assert Written.read(state) == Written(server._state.incarnation, left.position)
    with logged(copy) as other, client_of(other, client) as again:
        assert again.read("v")[0].tolist() == [[7.0, 7.0], [7.0, 7.0]]
        again.assign("v", torch.full((2, 2), 3.0))
    with logged(copy) as other, client_of(other, again) as last:
        assert last.read("v")[0].tolist() == [[3.0, 3.0], [3.0, 3.0]]
    records: list[Any] = [each.msg for each in caplog.records]
    (cut,) = [each for each in records if "cut off" in str(each)]
    assert cut["event"] == "cut off what was not written in full"
    assert (cut["nbytes"], cut["records"]) == (len(batch), 2)
    assert (cut["path"], cut["behind_record"]) == (str(path), left.position)


def test_a_log_that_has_lost_its_end_is_not_read(folder: Path) -> None:
    with logged(folder) as server, client_of(server) as client:
        trained(client, steps=3)
        copy = killed(folder)
    path = segments(copy)[-1]
    path.write_bytes(path.read_bytes()[: end_of(path) - 1])
    with pytest.raises(DataLossError, match=r"lost its end: it ends with record 5, at byte \d+"):
        logged(copy).start()
    path.unlink()
    with pytest.raises(DataLossError, match="ends with record 0, but record 6 was on disk"):
        logged(copy).start()


def test_a_note_of_what_was_written_that_is_damaged_or_of_another_log_says_nothing(
    folder: Path,
) -> None:
    with logged(folder) as server, client_of(server) as client:
        trained(client, steps=3)
        copy = killed(folder)
    note = copy / "ps-0" / WRITTEN
    note.write_bytes(bytes(note.stat().st_size))
    with logged(copy) as other, client_of(other, client) as again:
        assert again.read("v")[0].tolist() == [[7.0, 7.0], [7.0, 7.0]]
    note.write_bytes(Written(bytes(16), 1000).encoded())
    with logged(copy) as other, client_of(other, client) as again:
        assert again.read("v")[0].tolist() == [[7.0, 7.0], [7.0, 7.0]]


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("durability", ["log", "snapshot"])
def test_the_state_of_another_task_is_refused_by_name(
    folder: Path, durability: Durability, stops: bool
) -> None:
    settings = ServerSettings(durability=durability, durability_folder=str(folder))
    with ParameterServer(settings) as server, client_of(server) as client:
        client.create(v=torch.ones(3))
        copy = killed(folder)
    copy = folder if stops or durability == "snapshot" else copy
    (copy / "ps-0").rename(copy / "ps-1")
    settings = replace(settings, task=1, durability_folder=str(copy))
    with pytest.raises(FailedPreconditionError, match="state of /job:ps/task:0, and this is") as it:
        ParameterServer(settings).start()
    assert "/job:ps/task:1" in it.value.message
    # Nothing of it is lost.
    (copy / "ps-1").rename(copy / "ps-0")
    settings = replace(settings, task=0)
    with ParameterServer(settings) as server, client_of(server, client) as again:
        assert again.read("v")[0].tolist() == [1.0] * 3


def test_a_damaged_log_is_not_read(folder: Path) -> None:
    with logged(folder) as server, client_of(server) as client:
        trained(client)
        copy = killed(folder)
    path = segments(copy)[0]
    data = bytearray(path.read_bytes())
    data[end_of(path) // 2] ^= 1
    path.write_bytes(data)
    refused(copy, DataLossError, f"{path.name}.* from byte")
    assert path.read_bytes() == data


def refused(folder: Path, error: type[StratagemError], says: str) -> None:
    with pytest.raises(error, match=says):
        logged(folder).start()


def test_a_folder_that_a_living_server_holds_is_refused(folder: Path) -> None:
    with logged(folder):
        refused(folder, FailedPreconditionError, "/job:ps/task:0, process .* uses .*ps-0")
    with logged(folder):
        pass


def test_a_log_of_other_kernels_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with logged(folder) as server, client_of(server) as client:
        trained(client)
        copy = killed(folder)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    refused(copy, FailedPreconditionError, "77 threads")
    # What was stopped in order left an image, which any kernels can read.
    with logged(folder):
        pass


@pytest.mark.unlogged
def test_threads_that_a_running_loop_has_not_heard_of_are_no_other_kernels(folder: Path) -> None:
    threads = torch.get_num_threads()
    loop = LoopThread.acquire()
    loop.run(_use_kernels())
    torch.set_num_threads(threads + 1)
    try:
        with logged(folder) as server, client_of(server) as client:
            trained(client)
            with logged(killed(folder)):
                pass
    finally:
        torch.set_num_threads(threads)
        loop.release()


async def _use_kernels() -> None:
    assert torch.get_num_threads()


@pytest.mark.parametrize("kind", ["tmpfs", "ramfs"])
def test_a_folder_in_memory_is_refused(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_folder, "file_system_of", lambda _: kind)
    refused(folder, InvalidArgumentError, f"is in memory .{kind}.")
    assert list(folder.iterdir()) == []


def test_a_log_needs_a_folder(tmp_path: Path) -> None:
    refused(tmp_path / "none", InvalidArgumentError, "there is no folder")
    with pytest.raises(InvalidArgumentError, match="--durability-folder"):
        ParameterServer(ServerSettings(durability="log")).start()
