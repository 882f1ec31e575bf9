"""A server that reads and writes checkpoints in a store, below one URL only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import torch

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
)
from stratagem_psserver.cli import ServerOptions
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_storage.checkpoint.folder import NewCheckpoint
from tests.checkpoints import model, save_at
from tests.psserver.checkpoints.asking import save_to, stage
from tests.psserver.wire import RawClient


def saved(url: str) -> None:
    save_at(url, [[(model(name, torch.ones(2)), torch.ones(2)) for name in ("w", "v")]], keep=1)


@pytest.fixture
def root(bucket: str) -> str:
    """A root with a checkpoint, beside which there is one as well."""
    saved(f"{bucket}/root/run")
    saved(f"{bucket}/outside")
    return f"{bucket}/root"


@pytest.fixture
def client(root: str) -> Iterator[RawClient]:
    with (
        ParameterServer(ServerSettings(checkpoint_root=root)) as server,
        RawClient(server.address, "") as client,
    ):
        client.open()
        client.create(w=torch.full((2,), 5.0), v=torch.full((2,), 6.0))
        yield client


def test_what_is_below_the_root_is_read_and_written(client: RawClient, root: str) -> None:
    stage(client, f"{root}/run")
    new = NewCheckpoint(f"{root}/new")
    part = save_to(client, str(new.folder.path))
    with new.folder.file(part.name) as file:
        assert len(file.read(part.nbytes + 1)) == part.nbytes


def test_other_places_are_refused_by_name(client: RawClient, root: str, bucket: str) -> None:
    system = fsspec.filesystem("s3")
    before, files = client.everything(), system.find(bucket)
    for path in (f"{bucket}/outside", bucket, f"{root}-2", "s3://other/root/run", "/tmp"):
        for ask in (stage, save_to):
            with pytest.raises(PermissionDeniedError, match="checkpoint-root"):
                ask(client, path)
    for path in (f"{root}/../outside", "memory://run", "http://host/run"):
        for ask in (stage, save_to):
            with pytest.raises(InvalidArgumentError):
                ask(client, path)
    assert client.everything() == before
    assert system.find(bucket) == files


def test_a_server_writes_only_where_a_checkpoint_has_begun(client: RawClient, root: str) -> None:
    with pytest.raises(FailedPreconditionError, match="nobody has begun a checkpoint there"):
        save_to(client, f"{root}/somewhere")
    assert fsspec.filesystem("s3").find(f"{root}/somewhere") == []


def test_a_part_that_is_there_is_not_replaced(client: RawClient, root: str) -> None:
    new = NewCheckpoint(f"{root}/twice")
    part = save_to(client, str(new.folder.path))
    before = new.folder.read(part.name, part.nbytes)
    with pytest.raises(FailedPreconditionError, match="there is such an object"):
        save_to(client, str(new.folder.path))
    assert new.folder.read(part.name, part.nbytes) == before


def test_a_folder_is_no_root_of_a_store_nor_the_reverse(tmp_path: Path, root: str) -> None:
    settings = ServerSettings(checkpoint_root=str(tmp_path), restore=f"{root}/run")
    with pytest.raises(PermissionDeniedError, match="checkpoint-root"), ParameterServer(settings):
        pass


def test_the_memory_of_a_process_is_no_root() -> None:
    with pytest.raises(InvalidArgumentError, match="memory of one process"):
        ServerSettings(checkpoint_root="memory://root")


def test_the_options_take_urls() -> None:
    options = {"checkpoint_root": "s3://bucket/root", "restore": "s3://bucket/root/run"}
    settings = ServerOptions.read(options).settings()
    assert settings.checkpoint_root == "s3://bucket/root"
    assert settings.checkpoints.root is not None
