"""What tests of a running worker server need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratagem._worker_client.link import WorkerLink
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.conftest import TOKEN
from tests.worker.links import connected


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerServer]:
    """A worker server in this process, on free ports, that expects TOKEN."""
    with WorkerServer(WorkerSettings(token=TOKEN, task=0)) as running:
        yield running


@pytest.fixture
def link(worker: WorkerServer) -> Iterator[WorkerLink]:
    """A session with it."""
    with connected(worker) as link:
        yield link
