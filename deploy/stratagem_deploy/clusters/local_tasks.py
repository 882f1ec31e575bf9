"""The servers and workers of a local cluster, as threads or processes."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import cloudpickle

from stratagem_deploy.certificates.subjects import LocalAuthority, Subject, subject
from stratagem_deploy.clusters.call import Outcome, WorkerCall
from stratagem_deploy.clusters.cluster import Worker, no_process
from stratagem_deploy.clusters.plan import Plan, arbiter_folder, replica_options, replica_settings
from stratagem_deploy.clusters.servers import (
    RestartableServer,
    ServerCommand,
    ServerProcess,
    ServerThread,
    patience_for_restarts,
    replicated,
)
from stratagem_deploy.processes.fork_server import prepare, start_forked
from stratagem_deploy.processes.process import (
    Process,
    Transcript,
    describe_exit,
    equal_order_of_sets,
    idle_threads,
    import_path,
    share_of_cores,
)
from stratagem_deploy.processes.resources import PrivateDirectory, ReservedAddresses
from stratagem_proto.errors import AbortedError, UnimplementedError
from stratagem_worker.functions import Interruptible

_CALL = "stratagem_deploy.clusters.call"


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
        # A notebook keeps the last error, and with it what the functions that it went through held:
        # the strategy of the thread, whose variables the next run could not have. The error's text
        # is kept elsewhere.
        error: BaseException | None = outcome.error
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
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


def _worker_environment() -> dict[str, str]:
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

        Calls and their outcomes are written to the directory. `show` is called with every line that
        its processes write, and `environment` is added to ours.
        """
        self._name = name
        self._environment = {**_worker_environment(), **(environment or {})}
        self._directory = directory
        self._show = show
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._attempt: _Attempt | None = None

    @staticmethod
    def prepare() -> None:
        """Begin to load what the processes of all such workers have in common."""
        prepare(_CALL, _worker_environment())

    def make(self, call: WorkerCall) -> Outcome:
        file = self._directory / f"{self._name}-{next(self._numbers)}.call"
        file.write_bytes(call.to_bytes())
        with self._lock:
            attempt = self._attempt = self._try(file)
        while True:
            attempt.process.wait()
            with self._lock:
                # A restart may have replaced it.
                if self._attempt is attempt:
                    self._attempt = None
                    break
                attempt = self._running()
        return attempt.outcome()

    def kill(self) -> None:
        with self._lock:
            process = self._running().process
        _kill(process)

    def stop(self, grace: float) -> None:
        with self._lock:
            process = self._running().process
        process.end(grace)

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

    def _running(self) -> _Attempt:
        if self._attempt is None:
            raise no_process(self._name, "LocalCluster")
        return self._attempt


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


Show = Callable[[str, int], Callable[[str], None] | None]
"""Returns what shows the output of a process, by its name and the index of its task."""


NewServer = Callable[[str, int, ReservedAddresses], RestartableServer]
"""Makes the server of a task, by its job, index and addresses; starts nothing."""

NewReplica = Callable[[str, int, str, int], RestartableServer]
"""Makes one of its replicas, by the job, the index, its address and its number."""

Addresses = Mapping[str, Sequence[ReservedAddresses]]
"""Where the servers of each job listen."""


@dataclass(frozen=True)
class Tasks:
    """The servers and workers of a local cluster.

    Attributes:
        servers: Its servers by job; their order is that of their indices.
        workers: Workers that make calls.
        new_server: Makes one more server.
    """

    servers: Mapping[str, list[RestartableServer]]
    workers: Sequence[LocalWorker]
    new_server: NewServer


def threads(plan: Plan, addresses: Addresses, arbiter: Path) -> Tasks:
    """Return tasks that live in this process; at the arbiter replicas agree on which serves."""

    def new_replica(job: str, index: int, address: str, number: int) -> RestartableServer:
        movable = plan.movable and job == "ps"
        replication = replica_settings(
            plan.replicas_of(job), number, arbiter, movable, plan.tasks, plan.ps
        )
        return ServerThread(partial(plan.new_server, job, index, address, replication=replication))

    workers = [ThreadWorker(f"worker:{index}") for index in range(plan.workers)]
    return _tasks(plan, addresses, new_replica, workers)


def _tasks(
    plan: Plan, addresses: Addresses, new_replica: NewReplica, workers: Sequence[LocalWorker]
) -> Tasks:
    def new_server(job: str, index: int, where: ReservedAddresses) -> RestartableServer:
        def replica(address: str, number: int) -> RestartableServer:
            return new_replica(job, index, address, number)

        return replicated(f"{job}:{index}", where.replicas, plan.token, replica)

    servers = {
        job: [new_server(job, index, addresses[job][index]) for index in range(count)]
        for job, count in plan.served.items()
    }
    return Tasks(servers, workers, new_server)


def processes(
    plan: Plan,
    addresses: Addresses,
    directory: PrivateDirectory,
    show: Show,
    authority: LocalAuthority | None,
) -> Tasks:
    """Return tasks that are processes of their own, with certificates if there is an authority."""
    token_file = directory.write_secret("token", plan.token)
    arbiter = arbiter_folder(plan.storage, directory.path)
    lease = plan.lease_seconds
    both = () if lease is None else ("--lease-seconds", str(lease))

    def certificates(job: str, index: int) -> Mapping[str, str]:
        """Return what a task finds in its environment of its certificates."""
        if authority is None:
            return {}
        is_chief = job == "worker" and index == 0 and plan.workers > 0
        role = "chief" if is_chief else subject(f"{job}:{index}").role
        return authority.environment(Subject(role, job, index))

    def new_replica(job: str, index: int, address: str, number: int) -> RestartableServer:
        if job == "worker":
            own = {**share_of_cores(plan.worker_servers), **equal_order_of_sets()}
            options = both
        else:
            own = {**(patience_for_restarts() if plan.workers else {})}
            replication = replica_options(
                plan.replicas, number, arbiter, plan.movable, plan.tasks, plan.ps
            )
            options = (*both, *plan.storage.options, *replication)
        own |= certificates(job, index)
        replica = number if plan.replicas_of(job) > 1 else None
        command = ServerCommand(job, index, address, token_file, options, own, replica)
        return ServerProcess(command, show=show(command.name, index))

    if plan.workers:
        ProcessWorker.prepare()
    workers = [
        ProcessWorker(name, directory.path, show(name, index), certificates("worker", index))
        for index, name in enumerate(f"worker:{index}" for index in range(plan.workers))
    ]
    return _tasks(plan, addresses, new_replica, workers)
