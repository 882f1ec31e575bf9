"""The workers of a cluster, and those that are threads or processes of this one."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import cloudpickle

from stratagem_deploy.clusters.call import Outcome, WorkerCall
from stratagem_deploy.processes.forking.fork_server import prepare, start_forked
from stratagem_deploy.processes.process import (
    Process,
    describe_exit,
    equal_order_of_sets,
    idle_threads,
    import_path,
)
from stratagem_deploy.processes.transcript import Transcript
from stratagem_proto.errors import AbortedError, FailedPreconditionError, UnimplementedError
from stratagem_worker.functions import Interruptible

_CALL = "stratagem_deploy.clusters.call"


class Worker(Protocol):
    """One worker; it does something only while a call is made on it."""

    def make(self, call: WorkerCall) -> Outcome:
        """Make a call, and return its outcome once it has ended or was ended."""

    def end_call(self, grace: float) -> None:
        """End the call that is being made, if there is one. It may be asked again."""


class LocalWorker(Worker, Protocol):
    """A worker on this machine, which no supervisor restarts."""

    def kill(self) -> None:
        """End the process that makes the call, without any grace.

        Like the next two methods, it raises `UnimplementedError` if a thread makes the call, and
        `FailedPreconditionError` if no call is being made.
        """

    def stop(self, grace: float) -> None:
        """Ask it to end, and kill it after `grace` seconds."""

    def restart(self, timeout: float) -> None:
        """Kill it and make the same call anew, from its beginning."""


class ThreadWorker:
    """A worker whose calls are made by a thread of this process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: Interruptible[str] = Interruptible()

    def make(self, call: WorkerCall) -> Outcome:
        outcome = self._running.run(self._name, call.outcome, self._given_up)
        if outcome.error is not None:
            _let_go(outcome.error)
        return outcome

    def kill(self) -> None:
        raise self._not_a_process("killed")

    def stop(self, grace: float) -> None:
        raise self._not_a_process("stopped")

    def restart(self, timeout: float) -> None:
        raise self._not_a_process("restarted")

    def end_call(self, grace: float) -> None:
        """Raise an exception in the thread, which what it is in the midst of may delay."""
        self._running.interrupt(lambda name: True)

    def _given_up(self) -> Outcome:
        return Outcome(error=AbortedError(f"the function of {self._name} was given up"))

    def _not_a_process(self, what: str) -> UnimplementedError:
        return UnimplementedError(
            f"{self._name} is a thread and cannot be {what}; use LocalCluster(processes=True)"
        )


def _environment() -> dict[str, str]:
    return {**import_path(), **idle_threads(), **equal_order_of_sets()}


class ProcessWorker:
    """A worker whose every call is made by a new process."""

    def __init__(
        self,
        name: str,
        directory: Path,
        show: Callable[[str], None] | None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            name: What messages call it, for instance "worker:1".
            directory: Where calls and their outcomes are written.
            show: Called with every line that its processes write.
            environment: What they find in their environment, besides what we found in ours.
        """
        self._name = name
        self._environment = {**_environment(), **(environment or {})}
        self._directory = directory
        self._show = show
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._attempt: _Attempt | None = None

    @staticmethod
    def prepare() -> None:
        """Begin to load what the processes of all such workers have in common."""
        prepare(_CALL, _environment())

    def make(self, call: WorkerCall) -> Outcome:
        file = self._directory / f"{self._name}-{next(self._numbers)}.call"
        file.write_bytes(call.to_bytes())
        with self._lock:
            attempt = self._attempt = self._try(file)
        while not self._is_final(attempt):
            attempt = self._current()
        return attempt.outcome()

    def kill(self) -> None:
        _kill(self._current().process)

    def stop(self, grace: float) -> None:
        self._current().process.end(grace)

    def restart(self, timeout: float) -> None:
        with self._lock:
            replaced = self._running()
            # The next one would see a task that still trains.
            _kill(replaced.process)
            self._attempt = self._try(replaced.call_file)

    def end_call(self, grace: float) -> None:
        with self._lock:
            attempt = self._attempt
        if attempt:
            attempt.process.end(grace)

    def _try(self, call_file: Path) -> _Attempt:
        outcome_file = call_file.with_suffix(f".outcome-{next(self._numbers)}")
        files = [str(call_file), str(outcome_file)]
        command = [sys.executable, "-m", _CALL, *files]
        output = Transcript(self._show)
        process = Process(
            self._name, command, environment=self._environment, output=output, start=start_forked
        )
        return _Attempt(call_file, outcome_file, process)

    def _is_final(self, attempt: _Attempt) -> bool:
        """Wait until an attempt ends, and return whether no other one has replaced it."""
        attempt.process.wait()
        with self._lock:
            if self._attempt is not attempt:
                return False
            self._attempt = None
            return True

    def _current(self) -> _Attempt:
        with self._lock:
            return self._running()

    def _running(self) -> _Attempt:
        if self._attempt is None:
            raise no_process(self._name, "LocalCluster")
        return self._attempt


def _let_go(error: BaseException | None) -> None:
    """Forget what the functions that an error went through held; its text is kept elsewhere.

    A notebook keeps the last error, and with it the strategy of the thread, whose variables the
    next run could not have.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def no_process(name: str, cluster: str) -> FailedPreconditionError:
    """Return the error of acting on a worker that makes no call."""
    return FailedPreconditionError(
        f"{name} has no process now; it has one while {cluster}.run() waits for its function"
    )


class _Attempt:
    """One process that makes a call."""

    def __init__(self, call_file: Path, outcome_file: Path, process: Process) -> None:
        self.call_file = call_file
        self.process = process
        self._outcome_file = outcome_file

    def outcome(self) -> Outcome:
        if self._outcome_file.exists():
            outcome: Outcome = cloudpickle.loads(self._outcome_file.read_bytes())
            return outcome
        code = self.process.exit_code
        ended = describe_exit(code) if code is not None else "nothing"
        message = f"{self.process.name} ended with {ended} and without a result"
        return Outcome(error=AbortedError(message), traceback=self.process.tail())


def _kill(process: Process) -> None:
    process.send(signal.SIGKILL)
    process.wait()
