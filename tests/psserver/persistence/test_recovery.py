"""A server that comes back from its log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.psserver.wire import RawClient, optimizer_program


def settings(folder: Path, **others: object) -> ServerSettings:
    return ServerSettings(durability="log", durability_folder=str(folder), **others)  # type: ignore[arg-type]


@contextmanager
def client_of(server: ParameterServer, before: RawClient | None = None) -> Iterator[RawClient]:
    """Opens a session, or resumes that of another client."""
    with RawClient(server.address, "") as client:
        if before is not None:
            client.session_id, client.sequence = before.session_id, before.sequence
        client.open()
        yield client


def killed(folder: Path) -> Path:
    """What the disk has when the process is killed now."""
    return Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-killed")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir()
    return path


def test_all_that_was_answered_is_there_after_a_kill(folder: Path) -> None:
    parameter = torch.nn.Parameter(torch.zeros(5))
    program = optimizer_program(torch.optim.Adam([parameter], lr=0.1), "adam")
    with ParameterServer(settings(folder)) as server, client_of(server) as client:
        client.create(w=torch.zeros(5), v=torch.ones(2, 2))
        for number in range(20):
            client.update(program, {"w": torch.full((5,), float(number))})
        client.assign("v", torch.full((2, 2), 7.0))
        before = client.everything()
        with (
            ParameterServer(settings(killed(folder))) as other,
            client_of(other, client) as again,
        ):
            assert again.everything() == before
