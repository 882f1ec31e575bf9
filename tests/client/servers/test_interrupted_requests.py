"""Requests whose thread is interrupted, as by Ctrl-C, anywhere."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from types import FrameType, TracebackType
from typing import Any

import pytest
import torch

from stratagem._ps_client.checkpoint_steps import CheckpointSteps
from stratagem._ps_client.connection import Connection
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.pending import Pending
from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.requests.variables import Writing, assign, create
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_MODEL, VariableSpec
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_ADD
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.connections import IDENTITY, add, connected, make, value_of
from tests.conftest import TOKEN
from tests.full import a_few

# Less than a server waits for a request whose number was left out.
_SECONDS = 15.0

_ONE = torch.ones(1)


def _making() -> Request[Any]:
    spec = VariableSpec(name="v", tensor=spec_of(_ONE), kind=VARIABLE_KIND_MODEL)
    return create([spec], [_ONE])


def _adding() -> Request[list[int]]:
    return assign([Writing("v", ASSIGN_MODE_ADD, _ONE)])


def _sent(connection: Connection) -> Pending[list[int]]:
    return connection.start(_adding())


def _in_time(work: Callable[[], object]) -> None:
    """Does work in a thread that keeps nobody waiting if it never ends."""
    failures: list[BaseException] = []

    def attempt() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    assert not thread.is_alive(), "it waits for what nobody will end"
    if failures:
        raise failures[0]


class _InterruptedAt:
    """Interrupts this thread where Python looks whether a signal has come.

    That is as functions begin, and behind calls of what is not written in Python.

    Args:
        number: Of the place, counted from 1.
        places: Parts of the names of the files that it is in.

    Attributes:
        came: Whether there was such a place; what came of it is over.
        exceptions: The interruption, with its traceback.
    """

    def __init__(self, number: int, *places: str) -> None:
        self._left, self._places = number, places
        self.exceptions: list[BaseException | None] = []
        self._profiled = sys.getprofile()

    def _pass(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_return"):
            file = frame.f_code.co_filename
            self._left -= any(place in file for place in self._places)
            if not self._left:
                raise KeyboardInterrupt

    @property
    def came(self) -> bool:
        return self._left <= 0

    def __enter__(self) -> _InterruptedAt:
        sys.setprofile(self._pass)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        _: TracebackType | None,
    ) -> bool:
        sys.setprofile(self._profiled)
        self.exceptions.append(exception)
        return kind is KeyboardInterrupt


def test_a_request_that_nobody_waits_for_keeps_nobody_else_waiting(
    server: ParameterServer,
) -> None:
    with connected(server.address) as connection:
        make(connection, "v", torch.zeros(1))
        _sent(connection)
        _in_time(lambda: add(connection, "v", _ONE))
        assert value_of(connection, "v", _ONE).item() in (1, 2)


def test_a_thread_may_send_while_it_handles_what_has_interrupted_it(
    server: ParameterServer,
) -> None:
    with connected(server.address) as connection:
        make(connection, "v", torch.zeros(1))

        def handle() -> None:
            # As the traceback of an exception does, this keeps the request.
            left = _sent(connection)
            add(connection, "v", _ONE)
            left.abandon()
            add(connection, "v", _ONE)

        _in_time(handle)
        assert value_of(connection, "v", _ONE).item() in (2, 3)


def test_other_threads_wait_for_a_request_that_somebody_has(
    server: ParameterServer,
) -> None:
    with connected(server.address) as connection:
        make(connection, "v", torch.zeros(1))
        pending = _sent(connection)
        versions: list[int] = []
        other = threading.Thread(target=lambda: versions.append(add(connection, "v", _ONE)))
        other.start()
        (version,) = pending.result()
        other.join()
        assert [version + 1] == versions


def test_a_request_may_be_interrupted_anywhere(
    server: ParameterServer,
) -> None:
    files = "connection", "route", "session", "pending"
    places = [f"/{file}.py" for file in files]
    with connected(server.address) as connection:
        make(connection, "v", torch.zeros(1))
        for number in count(1):
            before = value_of(connection, "v", _ONE).item()
            with _InterruptedAt(number, *places) as interruption:
                add(connection, "v", _ONE)
            if not interruption.came:
                break
            interruption.exceptions.clear()
            # Tracebacks may be in circles.
            gc.collect()
            _in_time(lambda: add(connection, "v", _ONE))
            # What was interrupted was applied once, or not at all.
            assert value_of(connection, "v", _ONE).item() - before in (1, 2)
        assert number > 20, "so often it was interrupted"


# Python itself lets go of what comes while a generator is dropped.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@a_few("count_of_servers", [1, 2], "one server is kept waiting as two are")
def test_who_keeps_what_has_interrupted_them_keeps_nobody_else_waiting(
    server: ParameterServer, count_of_servers: int
) -> None:
    """As IPython keeps the last traceback, and a program a list of its failures."""
    files = "group", "connection", "route", "pending"
    places = [f"/{file}.py" for file in files]
    with ParameterServer(ServerSettings(task=1, token=TOKEN)) as other:
        group = ServerGroup([server.address, other.address], IDENTITY)
        tasks = range(count_of_servers)

        def change() -> None:
            group.call_all({task: _adding() for task in tasks})

        group.call_all({task: _making() for task in tasks})
        for number in count(1):
            with _InterruptedAt(number, *places) as interruption:
                change()
            if not interruption.came:
                break
            _in_time(change)
        group.close()
        assert number > 20 * count_of_servers, "so often it was interrupted"


def test_steps_may_be_interrupted_as_they_end() -> None:
    places = ("/checkpoint_steps.py", "/threading.py")
    for number in count(1):
        steps = CheckpointSteps()
        with _InterruptedAt(number, *places) as interruption, steps.step_scope():
            pass
        if not interruption.came:
            break
        # The heartbeat waits so, and the end of the program wakes it.
        _in_time(steps.wake)
        _in_time(partial(steps.wait_for_end, _SECONDS))
    assert number > 10, "so often they were interrupted"
