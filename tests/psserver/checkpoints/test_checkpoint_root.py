"""A server that reads and writes checkpoints below one folder only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stratagem_proto.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    StratagemError,
)
from stratagem_psserver.cli import ServerOptions
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.hostile_checkpoints import saved
from tests.psserver.checkpoints.asking import save_to, stage
from tests.psserver.wire import RawClient


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root, which has a checkpoint, a link out, and a link to its own checkpoint."""
    root = tmp_path / "root"
    root.mkdir()
    saved(root / "run")
    saved(tmp_path / "outside")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "again").symlink_to(root / "run")
    return root


@pytest.fixture
def client(root: Path) -> Iterator[RawClient]:
    settings = ServerSettings(checkpoint_root=str(root))
    with ParameterServer(settings) as server, RawClient(server.address, "") as client:
        client.open()
        client.create(w=torch.full((2,), 5.0), v=torch.full((2,), 6.0))
        yield client


def refused(client: RawClient, around: Path, path: Path | str, error: type[StratagemError]) -> None:
    before, files = client.everything(), sorted(around.rglob("*"))
    for ask in (stage, save_to):
        with pytest.raises(error):
            ask(client, path)
    assert client.everything() == before
    assert sorted(around.rglob("*")) == files


def test_what_is_below_the_root_is_read_and_written(client: RawClient, root: Path) -> None:
    stage(client, root / "run")
    stage(client, root / "run" / "checkpoint-1")
    save_file({"w": torch.ones(2), "v": torch.ones(2)}, root / "model.safetensors")
    stage(client, root / "model.safetensors")
    (root / "new").mkdir()
    save_to(client, root / "new")
    assert [path.name for path in (root / "new").iterdir()] == ["part-0.safetensors"]


def test_other_folders_are_refused_by_name(client: RawClient, root: Path) -> None:
    outside = root.parent / "outside"
    for path in (outside, outside / "checkpoint-1", root.parent, f"{root}-2", "/etc"):
        refused(client, root.parent, path, PermissionDeniedError)
    for path in (f"{root}/../outside", f"{root}/run/../../outside"):
        refused(client, root.parent, path, PermissionDeniedError)
    with pytest.raises(PermissionDeniedError, match="checkpoint-root"):
        stage(client, "run")


def test_links_behind_the_root_are_not_followed(client: RawClient, root: Path) -> None:
    for path in (root / "out", root / "out" / "checkpoint-1", root / "again"):
        refused(client, root.parent, path, DataLossError)


def test_a_pipe_below_the_root_is_refused(client: RawClient, root: Path) -> None:
    os.mkfifo(root / "pipe")
    refused(client, root.parent, root / "pipe", DataLossError)


def test_what_is_not_there_is_said_to_be_missing(client: RawClient, root: Path) -> None:
    refused(client, root.parent, root / "none", NotFoundError)


def test_the_root_itself_may_be_reached_by_a_link(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    settings = ServerSettings(checkpoint_root=str(link))
    with ParameterServer(settings) as server, RawClient(server.address, "") as client:
        client.open()
        client.create(w=torch.full((2,), 5.0), v=torch.full((2,), 6.0))
        stage(client, link / "run")
        stage(client, root / "run")


def test_a_server_does_not_begin_with_what_is_outside(root: Path) -> None:
    settings = ServerSettings(checkpoint_root=str(root), restore=str(root.parent / "outside"))
    with pytest.raises(PermissionDeniedError, match="checkpoint-root"), ParameterServer(settings):
        pass


def test_the_root_is_a_folder_that_is_there(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none"), "run"):
        with pytest.raises(InvalidArgumentError, match="make it, or give another"):
            ServerSettings(checkpoint_root=path)


def test_the_option_takes_a_relative_path(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    monkeypatch.setenv("STRATAGEM_CHECKPOINT_ROOT", "root")
    assert ServerOptions.read({}).settings().checkpoint_root == str(root)


def test_nothing_is_compared_with_what_is_elsewhere(client: RawClient, root: Path) -> None:
    """All is written then; of a checkpoint below the root, only what differs is."""
    client.assign("w", torch.ones(2))  # as in the checkpoints
    outside = root.parent / "outside"
    for number, base in enumerate([root / "run", outside, root / "out"]):
        folder = root / f"{number}"
        folder.mkdir()
        part = save_to(client, folder, base)
        assert any(one.HasField("changed") for one in part.tensors) == (base == root / "run")
