"""A child process: what it writes, how it ends, and with whom, however it is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from stratagem_deploy.processes.fork_server import start_forked
from stratagem_deploy.processes.process import (
    Process,
    Starter,
    Transcript,
    describe_exit,
    import_path,
    start_program,
)
from tests.deploy.processes.process_tree import is_alive, python
from tests.waiting import eventually

SLEEPER = "import time; print('ready', flush=True); time.sleep(1000)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
ANSWERER = f"""
import signal
signal.signal(signal.SIGUSR1, lambda *_: print("alive", flush=True))
{SLEEPER}
"""
PARENT = """
import sys, time
from stratagem_deploy.processes.process import start_program
from stratagem_deploy.processes.fork_server import start_forked
from tests.deploy.processes.test_process import Processes, SLEEPER
child = Processes({start}).of(SLEEPER)
print(child.pid, flush=True)
time.sleep(1000)
"""
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(child.pid, flush=True)
time.sleep(1000)
"""


class Processes:
    """Makes processes that are started in one way."""

    def __init__(self, start: Starter) -> None:
        self.start = start

    def of(self, code: str, **settings: Any) -> Process:
        command = [sys.executable, "-m", "tests.deploy.processes.run_code", code]
        return Process("child", command, environment=import_path(), start=self.start, **settings)

    def ready(self, code: str) -> Process:
        process = self.of(code)
        eventually(lambda: bool(process.tail()))
        return process


@pytest.fixture(params=[start_program, start_forked])
def processes(request: pytest.FixtureRequest) -> Processes:
    return Processes(request.param)


def test_a_process_has_an_exit_code_and_what_it_wrote(processes: Processes) -> None:
    process = processes.of("import sys; print('out'); sys.exit(3)")
    assert process.wait(60)
    assert (process.exit_code, process.tail()) == (3, "out")


def test_output_and_errors_may_be_kept_apart(processes: Processes) -> None:
    output, errors = Transcript(), Transcript()
    code = "import sys; print('out'); print('err', file=sys.stderr)"
    process = processes.of(code, output=output, errors=errors)
    process.wait()
    assert (output.tail(), errors.tail()) == ("out", "err")


def test_who_asked_is_told_once_that_it_has_ended(processes: Processes) -> None:
    ends: SimpleQueue[Process] = SimpleQueue()
    process = processes.of("", on_end=ends.put)
    assert ends.get(timeout=60) is process
    assert process.exit_code == 0
    assert ends.empty()


def test_ending_asks_first(processes: Processes) -> None:
    process = processes.ready(SLEEPER)
    process.end(grace=60)
    assert process.exit_code == -signal.SIGTERM


def test_ending_kills_what_does_not_listen(processes: Processes) -> None:
    process = processes.ready(STUBBORN)
    process.end(grace=0.1)
    assert process.exit_code == -signal.SIGKILL


def test_a_signal_after_the_end_does_nothing(processes: Processes) -> None:
    process = processes.of("")
    process.wait()
    process.send(signal.SIGKILL)
    assert process.exit_code == 0


def test_its_children_end_with_it(processes: Processes) -> None:
    process = processes.ready(FAMILY)
    grandchild = int(process.tail())
    assert is_alive(grandchild)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    eventually(lambda: not is_alive(grandchild))


def test_it_ends_when_its_parent_is_killed(processes: Processes) -> None:
    code = PARENT.format(start=processes.start.__name__)
    with python("-c", code, output=subprocess.PIPE) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    eventually(lambda: not is_alive(pid))


def test_it_outlives_the_thread_that_started_it(processes: Processes) -> None:
    started_in_thread: list[Process] = []
    thread = threading.Thread(target=lambda: started_in_thread.append(processes.ready(ANSWERER)))
    thread.start()
    thread.join()
    (process,) = started_in_thread
    process.send(signal.SIGUSR1)
    eventually(lambda: process.tail() == "ready\nalive")
    process.end(grace=60)


def test_it_leaves_no_descriptor_open(processes: Processes) -> None:
    descriptors = Path("/proc/self/fd")
    processes.of("").wait()
    before = len(list(descriptors.iterdir()))
    processes.of("print('output')").wait()
    assert len(list(descriptors.iterdir())) == before


def test_the_ends_of_processes_are_put_into_words() -> None:
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-signal.SIGKILL) == "signal SIGKILL"
