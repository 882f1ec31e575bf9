"""Connections to real worker servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle

from stratagem._coordinator.link import WorkerLink
from stratagem._servers.session import Identity
from stratagem_proto.channel import Deadlines
from stratagem_proto.v1.session_pb2 import ROLE_CLIENT, Task
from stratagem_worker.server import WorkerServer
from tests.conftest import TOKEN

PATIENCE = 60.0

Shown = list[tuple[str, str]]


def link_to(
    address: str, shown: Shown | None = None, token: str = TOKEN, task: int = 0
) -> WorkerLink:
    """A link that is not connected yet; what functions write goes to a list."""
    lines: Shown = [] if shown is None else shown
    return WorkerLink(
        address,
        Task(job="worker", index=task),
        Identity(ROLE_CLIENT, token=token),
        Deadlines(connect=PATIENCE),
        lambda stream, text: lines.append((stream, text)),
    )


@contextmanager
def connected(
    worker: WorkerServer | str, shown: Shown | None = None, task: int = 0
) -> Iterator[WorkerLink]:
    """A link to a worker server, with a session."""
    address = worker if isinstance(worker, str) else worker.address
    link = link_to(address, shown, task=task)
    link.connect()
    try:
        yield link
    finally:
        link.close()


def result(link: WorkerLink, closure: int, function: Callable[[], Any]) -> Any:
    """What a function returns on the worker."""
    payload = cloudpickle.dumps(function)
    return cloudpickle.loads(link.run(closure, payload).result(PATIENCE))
