"""Whether `stratagem doctor` finds what is wrong with machines, asked of real servers."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from stratagem import Variable
from stratagem_psserver.environment import Environment
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.clusters import Cluster
from tests.conftest import TOKEN
from tests.deploy.watching.asked_doctor import AskedDoctor
from tests.deploy.watching.slow_compute import DelayedCompute
from tests.psserver.process import serving
from tests.psserver.wire import RawClient, sgd


def server_of(task: int, **settings: Any) -> ServerSettings:
    # Clients of the bare contract send no heartbeats.
    return ServerSettings(token=TOKEN, task=task, lease_seconds=600.0, **settings)


def test_a_server_that_takes_much_longer_than_another_is_named(doctor: AskedDoctor) -> None:
    slow = Environment(compute=DelayedCompute(0.02))
    with ParameterServer(server_of(0)) as quick, ParameterServer(server_of(1), slow) as server:
        for address in (quick.address, server.address):
            with RawClient(address, TOKEN) as client:
                client.open()
                client.create(v=torch.ones(4))
                for _ in range(20):
                    client.update(sgd(), {"v": torch.ones(4)})
        found = doctor.findings(quick.address, server.address)
    assert [one["culprits"] for one in found] == [["ps:1"]]
    assert "for each Update, the other servers at most" in found[0]["what"]


def test_a_server_whose_variables_nearly_fill_its_memory_is_named(doctor: AskedDoctor) -> None:
    with (
        ParameterServer(server_of(0, variable_bytes=1000)) as server,
        RawClient(server.address, TOKEN) as client,
    ):
        client.open()
        client.create(some=torch.ones(200))
        assert not doctor.findings(server.address)
        client.create(more=torch.ones(30))
        (found,) = doctor.findings(server.address)
    assert found["culprits"] == ["ps:0"]
    assert "uses 920 B of 1000 B (--variable-bytes)" in found["what"]


@contextmanager
def slow_calls(monkeypatch: pytest.MonkeyPatch, call: str, seconds: float) -> Iterator[None]:
    """A disk that takes so long for each call of the system."""
    quick = getattr(os, call)

    def slow(file: Any) -> None:
        time.sleep(seconds)
        quick(file)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, slow)
        yield


def test_a_slow_disk_of_checkpoints_is_named(
    doctor: AskedDoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ParameterServer(server_of(0)) as server:
        with Cluster([server.address], 1).strategy(0) as chief, chief.scope():
            Variable(torch.ones(3_000_000), name="large")
            with slow_calls(monkeypatch, "fsync", 1.0):
                chief.save(tmp_path).result(60)
        (found,) = doctor.findings(server.address)
    assert found["culprits"] == ["ps:0"]
    assert "to write 11.4 MiB of a checkpoint" in found["what"]


def test_a_slow_disk_of_a_log_is_named(
    doctor: AskedDoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = server_of(0, durability="log", durability_folder=str(tmp_path))
    with (
        slow_calls(monkeypatch, "fdatasync", 0.6),
        ParameterServer(logged) as server,
        RawClient(server.address, TOKEN) as client,
    ):
        client.open()
        client.create(v=torch.ones(4))
        while not (findings := doctor.findings(server.address)):
            client.update(sgd(), {"v": torch.ones(4)})
    (found,) = findings
    assert found["culprits"] == ["ps:0"]
    assert "on average until a part of its log is on disk" in found["what"]


# What runs before the server, on a machine of its own.
# gRPC waits by the clock of the system, so that only what the server says is different.
ANOTHER_CLOCK = """
import time
from types import SimpleNamespace
from stratagem_rpc.serving import status
status.time = SimpleNamespace(monotonic=time.monotonic, time=lambda: time.time() + 60)
"""
ANOTHER_PYTHON = "import platform\nplatform.python_version = lambda: '3.99.0'\n"
SERVER = "from stratagem_psserver.__main__ import main\n"


@contextmanager
def another_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, difference: str
) -> Iterator[str]:
    """The address of a server in a process for which something is different."""
    (folder / "another_machine.py").write_text(difference + SERVER)
    monkeypatch.syspath_prepend(folder)
    arguments = ("--task", "1", "--token-file", str(folder / "token"))
    with serving(folder, *arguments, module="another_machine") as server:
        yield server.address


def test_servers_whose_clocks_disagree_are_named(
    doctor: AskedDoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        ParameterServer(server_of(0)) as server,
        another_machine(tmp_path, monkeypatch, ANOTHER_CLOCK) as address,
    ):
        (found,) = doctor.findings(server.address, address)
    assert found["culprits"] == ["ps:0", "ps:1"]
    told = re.search(r"the clocks of ps:0 and ps:1 differ by ([\d.]+) s", found["what"])
    # Give or take the time that the answers took.
    assert told and 30 < float(told[1]) < 90


def test_servers_with_different_versions_are_named(
    doctor: AskedDoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        ParameterServer(server_of(0)) as server,
        another_machine(tmp_path, monkeypatch, ANOTHER_PYTHON) as address,
    ):
        (found,) = doctor.findings(server.address, address)
    assert sorted(found["culprits"]) == ["ps:0", "ps:1"]
    assert "versions of python differ" in found["what"]
    assert "ps:1 3.99.0" in found["what"]
