"""A process that is started as a task of which another one may still be there."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stratagem import Variable
from stratagem._ps_client.connection import Connection
from stratagem._ps_client.session import Identity
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_proto.errors import SupersededError
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.variables.locks import LockUse
from stratagem_rpc.channel import AUTO, GRPC, TCP, TRANSPORT_VARIABLE
from tests.client.clusters import Cluster
from tests.client.connections import IDENTITY, add, connected, make, value_of
from tests.conftest import TOKEN
from tests.relays import Relay
from tests.waiting import eventually

ONE = torch.ones(1)

PROGRAM = """
import sys
import torch
from stratagem import SupersededError, Variable
from tests.client.clusters import Cluster

strategy = Cluster([sys.argv[1]], num_workers=1).strategy()
with strategy.scope():
    counter = Variable(torch.tensor(0), name="counter")
try:
    while True:
        counter.assign_add(1)
        print("added", flush=True)
except SupersededError as error:
    print("superseded:", error, flush=True)
"""


def of(process: str) -> Identity:
    name = process.encode().ljust(16, b".")
    return replace(IDENTITY, client=name, process=name)


def count(connection: Connection) -> float:
    return value_of(connection, "v", ONE).item()


@contextmanager
def beside(act: Callable[[], object]) -> Iterator[list[Exception]]:
    """Acts in a thread, and yields a list of the error."""
    errors = list[Exception]()

    def run() -> None:
        try:
            act()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield errors
    finally:
        thread.join()


def test_what_a_former_process_had_sent_is_not_applied_once_the_next_one_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, GRPC)
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        Relay(int(server.address.rpartition(":")[2])) as relay,
        connected(f"127.0.0.1:{relay.port}", of("former")) as former,
    ):
        make(former, "v", ONE)
        relay.hold()
        with (
            beside(lambda: add(former, "v", ONE)) as errors,
            connected(server.address, of("next")) as present,
        ):
            assert count(present) == 1
            relay.release()
            eventually(lambda: bool(errors))
            assert count(present) == 1
        (error,) = errors
        assert isinstance(error, SupersededError)


def test_a_former_process_that_is_refused_again_and_again_does_the_next_one_no_harm() -> None:
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        connected(server.address, of("former")) as former,
        connected(server.address, of("next")) as present,
    ):
        make(former, "v", ONE)
        add(present, "v", ONE)
        (session,) = server._state.ledger.opened()
        for _ in range(3):
            with pytest.raises(SupersededError):
                add(former, "v", ONE)
        assert [*server._state.ledger.opened()] == [session]


@pytest.mark.parametrize("way", [AUTO, TCP, GRPC])
def test_the_next_one_sees_what_was_being_applied(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, way)
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        connected(server.address, of("former")) as former,
    ):
        make(former, "v", ONE)
        state, found = server._state, list[float]()
        lock = state.changing(["v"], LockUse("a test", "update"))
        server._loop.run(lock.__aenter__())

        def look() -> None:
            with connected(server.address, of("next")) as present:
                found.append(count(present))

        def is_applying() -> bool:
            return any(one.numbering.is_applying for one in state.ledger.opened())

        with beside(lambda: add(former, "v", ONE)) as ignored:
            eventually(is_applying)
            with beside(look) as errors:
                eventually(lambda: bool(state.ledger._leaving))
                server._loop.run(lock.__aexit__(None, None, None))
        assert (found, errors, ignored) == ([2.0], [], [])


@pytest.mark.parametrize("log_bytes", [1, 1 << 30], ids=["image", "records"])
def test_a_server_that_is_started_again_refuses_the_former_process(
    log_bytes: int, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    with (
        ReservedAddress() as reserved,
        connected(str(reserved), of("former")) as former,
        connected(str(reserved), of("next")) as present,
    ):
        settings = ServerSettings(
            bind=str(reserved),
            token=TOKEN,
            durability="log",
            durability_folder=folder,
            log_bytes=log_bytes,
        )
        with ParameterServer(settings):
            make(former, "v", ONE)
            add(present, "v", ONE)
        with ParameterServer(settings):
            with pytest.raises(SupersededError):
                add(former, "v", ONE)
            add(present, "v", ONE)
            assert count(present) == 3


def test_strategies_of_one_process_share_its_place() -> None:
    with ParameterServer(ServerSettings(token=TOKEN)) as server:
        cluster = Cluster([server.address], num_workers=1)
        with cluster.strategy() as first, cluster.strategy() as second:
            with first.scope():
                mine = Variable(torch.tensor(1.0), name="mine")
            with second.scope():
                theirs = Variable(torch.tensor(2.0), name="theirs")
            mine.assign_add(1.0)
            theirs.assign_add(1.0)
            assert (float(mine.numpy()), float(theirs.numpy())) == (2.0, 3.0)


@pytest.mark.cluster
def test_of_two_programs_of_one_task_the_later_one_goes_on() -> None:
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, server.address], stdout=subprocess.PIPE, text=True
        ) as former,
    ):
        assert former.stdout is not None
        assert former.stdout.readline() == "added\n"
        with Cluster([server.address], num_workers=1).strategy() as strategy:
            with strategy.scope():
                counter = Variable(torch.tensor(0), name="counter")
            there = int(counter.numpy())
            counter.assign_add(1)
            *added, last = former.stdout.read().splitlines()
            assert last.startswith("superseded: another process has begun as /job:worker/task:0")
            # The last one may have been applied without an answer.
            assert there - (len(added) + 1) in (0, 1)
            assert int(counter.numpy()) == there + 1
