"""A server that keeps images of its state without a log."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import pytest
import torch

from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError, StratagemError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_storage.checkpoint.folder import open_checkpoint
from tests.psserver.persistence.servers import client_of, killed, logged
from tests.psserver.wire import RawClient, encoded, sgd, update_header
from tests.waiting import eventually


def imaged(folder: Path, seconds: float = 60.0) -> ParameterServer:
    """A server that writes an image after each of these intervals in which something changed."""
    return ParameterServer(
        ServerSettings(
            durability="snapshot",
            durability_folder=str(folder),
            snapshot_seconds=seconds,
            reconnect_seconds=0.4,
        )
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir()
    return path


def image_of(folder: Path) -> str:
    """The name of the last image; "" if there is none."""
    try:
        return open_checkpoint(folder / "ps-0" / "images").folder.name
    except StratagemError:
        return ""


def is_imaged(folder: Path, name: str) -> bool:
    """Whether the last image has a variable."""
    try:
        return name in open_checkpoint(folder / "ps-0" / "images").index.tensors
    except StratagemError:
        return False


def stepped(client: RawClient) -> None:
    gradients = {"w": torch.ones(3)}
    header = update_header(client.key(), sgd(), gradients)
    client.upload("Update", encoded(header, list(gradients.values())), pb.UpdateResponse)


def test_a_server_that_was_stopped_goes_on_as_the_same_one(folder: Path) -> None:
    with imaged(folder) as server, client_of(server) as client:
        client.create(w=torch.zeros(3))
        stepped(client)
        before, incarnation = client.everything(), client.open().incarnation
    with imaged(folder) as server, client_of(server, client) as again:
        assert again.everything() == before
        stepped(again)
        assert again.read("w")[0].tolist() == [-2.0] * 3
        assert again.open().incarnation == incarnation


def test_a_server_that_was_killed_goes_on_with_its_last_image_as_another_one(folder: Path) -> None:
    with imaged(folder, seconds=0.1) as server, client_of(server) as client:
        client.create(w=torch.zeros(3))
        eventually(lambda: is_imaged(folder, "w"))
        copy = killed(folder)
        stepped(client)
        with imaged(copy) as other, client_of(other) as again:
            assert again.read("w")[0].tolist() == [0.0] * 3
            answer = again.open()
            assert answer.restored
            assert answer.incarnation != client.open().incarnation


def test_the_second_end_by_a_kill_is_not_taken_for_the_first_one_in_order(folder: Path) -> None:
    with imaged(folder) as server, client_of(server) as client:
        client.create(w=torch.zeros(3))
    with imaged(folder) as server, client_of(server, client) as again:
        stepped(again)
        incarnation, copy = again.open().incarnation, killed(folder)
    with imaged(copy) as other, client_of(other) as last:
        assert last.read("w")[0].tolist() == [0.0] * 3
        answer = last.open()
        assert answer.restored
        assert answer.incarnation != incarnation


def test_there_is_no_image_of_what_has_not_changed(folder: Path) -> None:
    with imaged(folder, seconds=0.1) as server, client_of(server) as client:
        client.create(w=torch.zeros(3))
        eventually(lambda: is_imaged(folder, "w"))
        images = {image_of(folder)}
        stepped(client)
        eventually(lambda: image_of(folder) not in images)
        images.add(image_of(folder))
        idle_until = monotonic() + 0.6
        eventually(lambda: monotonic() > idle_until)
        assert image_of(folder) in images


def test_another_durability_does_not_go_on_with_the_state(folder: Path) -> None:
    with imaged(folder) as server, client_of(server) as client:
        client.create(w=torch.zeros(3))
    with pytest.raises(FailedPreconditionError, match="with --durability snapshot; go on"):
        logged(folder).start()
    other = folder.with_name("log")
    other.mkdir()
    with logged(other) as server, client_of(server) as client:
        client.create(w=torch.zeros(3))
        copy = killed(other)
    for path in (copy, other):
        with pytest.raises(FailedPreconditionError, match="with --durability log; go on"):
            imaged(path).start()


def test_snapshots_need_a_folder_of_their_own(folder: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="--durability-folder"):
        ParameterServer(ServerSettings(durability="snapshot")).start()
    with imaged(folder), pytest.raises(FailedPreconditionError, match=r"process .* uses .*ps-0"):
        imaged(folder).start()
