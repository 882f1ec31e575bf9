"""Connections to real worker servers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stratagem._ps_client.session import Identity, handshake
from stratagem._shipping.kinds import Definition
from stratagem._shipping.outcome_forms import PLAIN, OutcomeForm
from stratagem._shipping.pickling import Pickler
from stratagem._worker_client.link import WorkerLink, this_runtime
from stratagem_proto.errors import UnavailableError
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.session_pb2 import ROLE_COORDINATOR, Task
from stratagem_rpc.channel import Deadlines, open_channel
from stratagem_worker.server import WorkerServer
from tests.conftest import TOKEN
from tests.rpc_methods import prove

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
        Identity(ROLE_COORDINATOR, token=token),
        Deadlines(connect=PATIENCE),
        lambda stream, text: lines.append((stream, text)),
    )


@contextmanager
def connected(
    worker: WorkerServer | str,
    shown: Shown | None = None,
    task: int = 0,
    outcomes: OutcomeForm = PLAIN,
) -> Iterator[WorkerLink]:
    """A link to a worker server, with a session."""
    address = worker if isinstance(worker, str) else worker.address
    link = link_to(address, shown, task=task)
    link.outcomes = outcomes
    link.connect()
    try:
        yield link
    finally:
        link.close()


def refuses(address: str) -> bool:
    """Whether a worker takes no more sessions, as one that is shutting down."""
    link = link_to(address)
    try:
        link.connect()
    except UnavailableError:
        return True
    link.close()
    return False


def opening(worker: WorkerServer) -> pb.WorkRequest:
    """The handshake of a session, with its proof."""
    session = handshake(Identity(ROLE_COORDINATOR, token=TOKEN), bytes(16))
    with open_channel(worker.address) as channel:
        prove(channel, TOKEN, "Work", session, PATIENCE)
    return pb.WorkRequest(open=pb.OpenWorkerSession(session=session, runtime=this_runtime()))


class Handle:
    """Stands in payloads for what the worker has under a handle."""

    def __init__(self, number: int) -> None:
        self.number = number


def payload_of(function: Callable[[], Any]) -> bytes:
    """What a worker loads as that function, with objects in place of handles."""
    return pickle.dumps(({}, _pickled(function)))


def definition_of(handle: int, value: object) -> bytes:
    """What defines an object."""
    return Definition(handle, 1, "result", "a value", _pickled(value), {}).encode()


def _pickled(value: object) -> bytes:
    return Pickler(lambda part: part.number if isinstance(part, Handle) else None).write(value)


def loaded(payload: bytes) -> Any:
    """What a worker has returned."""
    return PLAIN.load(payload, "the worker")


def result(link: WorkerLink, closure: int, function: Callable[[], Any]) -> Any:
    """What a function returns on the worker."""
    return loaded(link.run(closure, payload_of(function)).result(PATIENCE).payload)
