"""The worker server as a process: its command line, its end, and its absence."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from stratagem._shipping.call import FunctionCall
from stratagem._worker_client.wire import ClosureFailure, FailureKind
from stratagem.config import list_logical_devices
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_proto.errors import UnauthenticatedError, WorkerLostError
from tests.client.coordinator import importable_steps
from tests.conftest import TOKEN
from tests.psserver.process import PATIENCE, ServerProcess, launch, serving
from tests.stopping import stopped
from tests.waiting import eventually
from tests.worker.links import Shown, connected, link_to, loaded, payload_of, refuses, result

pytestmark = pytest.mark.cluster

LONGEST_LOSS = 30.0  # seconds until a closed connection is noticed


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    return file


def working(token_file: Path, *arguments: str) -> AbstractContextManager[ServerProcess]:
    """A worker server in a process, until the end of the body."""
    token = "--token-file", str(token_file)
    return serving(token_file.parent, *token, *arguments, module="stratagem_worker.__main__")


@pytest.fixture
def server(token_file: Path) -> Iterator[ServerProcess]:
    with working(token_file) as server:
        yield server


def wait_for(file: Path) -> str:
    """Runs on the worker: says that it has begun, and ends when the file is gone."""
    file.touch()
    eventually(lambda: not file.exists())
    return "through"


def test_a_worker_has_as_many_logical_cpus_as_it_is_told(token_file: Path) -> None:
    with (
        working(token_file, "--logical-cpus", "3") as server,
        connected(server.address) as link,
    ):
        assert len(result(link, 1, list_logical_devices)) >= 3


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_a_worker_runs_functions_of_the_modules_that_it_is_told_and_no_others(
    token_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    modules = f"{importable_steps.__name__},no_such_module"
    if by == "environment":
        monkeypatch.setenv("STRATAGEM_IMPORTABLE_ONLY", modules)
    flags = ("--importable-only", modules) if by == "flag" else ()
    touched = str(tmp_path / "touched")
    called = FunctionCall(importable_steps.touched, (touched,), {})
    with working(token_file, *flags) as server, connected(server.address) as link:
        assert result(link, 1, called) is None
        assert Path(touched).exists()
        for closure, refused in enumerate([os.getpid, lambda: 1], 2):
            error = link.run(closure, payload_of(refused)).exception(PATIENCE)
            assert isinstance(error, ClosureFailure)
            assert "loads no code from others" in str(error.exception)


@pytest.mark.parametrize("named", ["", " , "])
def test_a_worker_that_is_told_no_module_does_not_start(token_file: Path, named: str) -> None:
    command = ["--token-file", str(token_file), "--importable-only", named]
    with launch(*command, program="stratagem_worker") as started:
        _, errors = started.communicate()
    assert started.returncode == 2
    assert "names no module" in " ".join(errors.replace("│", "").split())


def test_functions_run_in_the_process_of_the_worker(server: ServerProcess) -> None:
    shown: Shown = []
    with connected(server.address, shown) as link:
        assert result(link, 1, os.getpid) == server.pid
        result(link, 2, lambda: print("word"))
        assert result(link, 3, lambda: __import__("stratagem").__name__) == "stratagem"
    assert shown == [("stdout", "word")]
    with pytest.raises(UnauthenticatedError):
        link_to(server.address, token="a guess by somebody").connect()


def test_sigterm_lets_the_function_end(server: ServerProcess, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with connected(server.address) as link:
        running = link.run(1, payload_of(lambda: wait_for(mark)))
        waiting = link.run(2, payload_of(os.getpid))
        eventually(mark.exists)
        server.send(signal.SIGTERM)
        eventually(lambda: refuses(server.address))
        with pytest.raises(ClosureFailure, match="given up") as given_back:
            waiting.result(PATIENCE)
        assert given_back.value.kind is FailureKind.CANCELLED
        assert not running.done()
        mark.unlink()
        assert loaded(running.result(PATIENCE).payload) == "through"
    assert server.exit_code() == 0


def test_a_killed_worker_is_lost_before_its_lease_ends(token_file: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    lease = str(4 * LONGEST_LOSS)
    with (
        working(token_file, "--lease-seconds", lease) as server,
        connected(server.address) as link,
    ):
        futures = [link.run(n, payload_of(lambda: wait_for(mark))) for n in range(3)]
        eventually(mark.exists)
        server.send(signal.SIGKILL)
        began = time.monotonic()
        for future in futures:
            with pytest.raises(WorkerLostError, match="/job:worker/task:0"):
                future.result(PATIENCE)
        assert time.monotonic() - began < LONGEST_LOSS


def test_a_worker_that_comes_back_is_connected_again(token_file: Path) -> None:
    with ReservedAddress() as address:
        with working(token_file, "--bind", str(address)) as first:
            link = link_to(first.address)
            link.connect()
            before = link.incarnation
            first.send(signal.SIGKILL)
            first.exit_code()
            with pytest.raises(WorkerLostError):
                result(link, 1, os.getpid)
        with working(token_file, "--bind", str(address)) as second:
            link.connect()
            assert link.incarnation != before
            assert result(link, 1, os.getpid) == second.pid
            link.close()


def test_a_worker_that_is_stopped_for_less_than_its_lease_keeps_its_functions(
    server: ServerProcess, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    with connected(server.address) as link:
        future = link.run(1, payload_of(lambda: wait_for(mark)))
        eventually(mark.exists)
        with stopped(server.pid):
            threading.Event().wait(5)
        mark.unlink()
        assert loaded(future.result(PATIENCE).payload) == "through"


@pytest.mark.spec("PS2-9")
def test_a_worker_that_is_stopped_for_longer_is_lost(token_file: Path) -> None:
    with (
        working(token_file, "--lease-seconds", "0.5") as server,
        connected(server.address) as link,
        stopped(server.pid),
        pytest.raises(WorkerLostError, match="nothing was heard"),
    ):
        result(link, 1, os.getpid)


def test_without_a_token_it_does_not_begin() -> None:
    popen = launch(program="stratagem_worker")
    _, said = popen.communicate(timeout=PATIENCE)
    assert popen.returncode == 2
    assert said.startswith("worker: /job:worker/task:0 has no cluster token")
    assert "Traceback" not in said
