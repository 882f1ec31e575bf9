"""Servers that keep a log, for tests of one process."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_storage.log import LogReader
from tests.psserver.wire import RawClient

# Of servers that have another copy elsewhere.
DURABILITIES = [
    pytest.param("none", marks=pytest.mark.full("servers that keep a log do the same, and more")),
    "log",
]


def logged(folder: Path, **others: Any) -> ParameterServer:
    """A server that keeps its log in a folder, which exists."""
    settings = ServerSettings(durability="log", durability_folder=str(folder), **others)
    return ParameterServer(settings)


@contextmanager
def client_of(server: ParameterServer, before: RawClient | None = None) -> Iterator[RawClient]:
    """Opens a session, or resumes that of another client."""
    with RawClient(server.address, "") as client:
        if before is not None:
            client.session_id, client.sequence = before.session_id, before.sequence
        client.open()
        yield client


def killed(folder: Path) -> Path:
    """A folder with what the disk has if the process is killed now."""
    return Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-killed")))


def end_of(segment: Path) -> int:
    """Where the last batch of a segment ends; behind it is room for the next ones."""
    reader = LogReader([segment])
    deque(reader.records(), 0)
    return reader.tail.offset if reader.tail else segment.stat().st_size


def segments(folder: Path) -> list[Path]:
    """The segments of the log of task 0."""
    return sorted((folder / "ps-0").glob("segment-*.log"))
