"""Running a training script, once per worker, with parameter servers of its own."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType

from stratagem_deploy.clusters.replicated_server import replicated
from stratagem_deploy.clusters.replication import arbiter_folder, replica_options
from stratagem_deploy.clusters.server_process import (
    ServerCommand,
    ServerProcess,
    patience_for_restarts,
)
from stratagem_deploy.clusters.servers import RestartableServer, serving
from stratagem_deploy.clusters.storage import Storage
from stratagem_deploy.output.display import Display
from stratagem_deploy.output.screen import Copied
from stratagem_deploy.processes.addresses import ReservedAddresses
from stratagem_deploy.processes.private_directory import PrivateDirectory
from stratagem_deploy.processes.process import Process, share_of_cores
from stratagem_deploy.processes.replica_restarts import ReplicaRestarts
from stratagem_deploy.processes.run_records import RunRecord, on_record
from stratagem_deploy.processes.supervision import Restarts, Supervision
from stratagem_deploy.running.credentials import RunCredentials
from stratagem_deploy.running.workers import ScriptWorkers
from stratagem_proto.certificates.presented import presenting
from stratagem_proto.notices.notice import Notice
from stratagem_proto.notices.watch import watched

_ROUTINE_LEVELS = {"debug", "info"}


def is_routine(line: str) -> bool:
    """Return whether a line is only interesting after a failure."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return False
    return isinstance(record, dict) and record.get("level") in _ROUTINE_LEVELS


_SERVER_START_SECONDS = 60.0


@dataclass(frozen=True)
class ScriptSettings:
    """The script to run, and the settings of the run.

    Attributes:
        command: The script and its arguments.
        ps: Number of parameter servers.
        workers: Number of workers; worker 0 is the chief.
        grace: Seconds that processes get to end when they are told to.
        verbose: Whether servers may tell what they do, and not only what is wrong.
        storage: The folders of the servers.
        max_restarts: How often a worker that failed, or a server that outlives its process, is
            started again, in all.
        full_tracebacks: Whether tracebacks have the frames of Stratagem, too.
        replicas: How many processes have the state of each parameter server.
        coordinators: How many processes run the script to coordinate the workers, which then are
            servers: one does, and the others stand by. 0 if each worker runs it.
        notice: What says that the run is to end, as SIGTERM does.
        tls: Whether the processes know each other by certificates, and encrypt what they send.
    """

    command: tuple[str, ...]
    ps: int = 1
    workers: int = 1
    grace: float = 10.0
    verbose: bool = False
    storage: Storage = field(default_factory=Storage)
    max_restarts: int = 0
    full_tracebacks: bool = False
    replicas: int = 1
    coordinators: int = 0
    notice: Notice | None = None
    tls: bool = False


class InterruptedRun(KeyboardInterrupt):
    """A signal came before there was a worker to pass it on to."""

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.signum = signum


class ScriptRun:
    """One run of a script on a cluster of local processes.

    Everything that happens, happens in the main thread, one event after the other: signals, and the
    ends of processes.
    """

    def __init__(self, settings: ScriptSettings, display: Display) -> None:
        self._settings = settings
        self._display = display
        self._events: SimpleQueue[Process | int] = SimpleQueue()
        self._servers: list[ServerProcess] = []
        # The task of each server, by the name of its process.
        self._tasks: dict[str, str] = {}
        self._workers: list[Process] = []
        self._stateless: Sequence[str] = ()

    def exit_code(self) -> int:
        """Run the script; return its exit code, that of the first worker to fail.

        Raises:
            UnavailableError: A server ended instead of serving.
            DeadlineExceededError: A server did not start in time.
        """
        with ExitStack() as resources:
            for signum in (signal.SIGINT, signal.SIGTERM):
                before = signal.signal(signum, self._on_signal)
                resources.callback(signal.signal, signum, before)
            before = signal.signal(signal.SIGWINCH, self._on_resize)
            resources.callback(signal.signal, signal.SIGWINCH, before)
            try:
                starter = self._start(resources)
            except InterruptedRun as interrupted:
                return 128 + interrupted.signum
            told = partial(self._events.put, signal.SIGTERM)
            resources.enter_context(watched(self._settings.notice, told))
            return self._supervise(starter)

    def _start(self, resources: ExitStack) -> ScriptWorkers:
        addresses = {
            job: [resources.enter_context(self._reserved(job)) for _ in range(count)]
            for job, count in self._counts.items()
        }
        cluster = {job: [*map(str, tasks)] for job, tasks in addresses.items()}
        directory = PrivateDirectory()
        resources.callback(directory.close)
        credentials = RunCredentials(directory, self._settings.tls)
        if credentials.of_observer is not None:
            resources.enter_context(presenting(credentials.of_observer))
        servers = [
            self._new_server(index, where, credentials)
            for index, where in enumerate(addresses["ps"])
        ]
        if self._settings.coordinators:
            servers += self._new_worker_servers(addresses["worker"], credentials)
        resources.enter_context(serving(servers, _SERVER_START_SECONDS))
        record = self._record(cluster, credentials)
        self._display.started(cluster, record.credentials)
        if cluster["ps"]:
            resources.enter_context(on_record(record))
        resources.callback(self._end_workers)
        settings = self._settings
        starter = ScriptWorkers(
            settings.command, cluster, credentials, settings.full_tracebacks, settings.coordinators
        )
        for index in range(starter.count):
            worker = starter.start(index, self._display, self._events.put)
            self._workers.append(worker)
        return starter

    def _record(
        self, cluster: Mapping[str, Sequence[str]], credentials: RunCredentials
    ) -> RunRecord:
        """Return the record by which `stratagem status` and similar commands find this run."""
        return RunRecord(
            pid=os.getpid(),
            script=self._settings.command[0],
            cluster={job: list(tasks) for job, tasks in cluster.items()},
            token_file=credentials.token_file,
            tls=credentials.of_observer,
        )

    @property
    def _counts(self) -> Mapping[str, int]:
        settings = self._settings
        counts = {"ps": settings.ps, "worker": settings.workers}
        return {**counts, "chief": 1} if settings.coordinators else counts

    def _reserved(self, job: str) -> ReservedAddresses:
        return ReservedAddresses(self._settings.replicas if job == "ps" else 1)

    def _new_server(
        self, index: int, where: ReservedAddresses, credentials: RunCredentials
    ) -> RestartableServer:
        """Return the server of a task, whose processes are those of the run."""
        storage, replicas = self._settings.storage, self._settings.replicas
        token_file = credentials.token_file
        arbiter = arbiter_folder(storage, token_file.parent)
        own = {
            **(patience_for_restarts() if self._settings.max_restarts else {}),
            **credentials.certificates("server", "ps", index),
        }

        def new_replica(address: str, number: int) -> RestartableServer:
            options = (*storage.options, *replica_options(replicas, number, arbiter))
            replica = number if replicas > 1 else None
            command = ServerCommand("ps", index, address, token_file, options, own, replica)
            process = ServerProcess(
                command, show=self._shown_log(command.name, index), on_end=self._events.put
            )
            self._servers.append(process)
            self._tasks[command.name] = f"ps:{index}"
            return process

        return replicated(f"ps:{index}", where.replicas, credentials.token, new_replica)

    def _new_worker_servers(
        self, addresses: Sequence[ReservedAddresses], credentials: RunCredentials
    ) -> Sequence[RestartableServer]:
        """Return the workers that run functions of a coordinator."""
        own, token_file = share_of_cores(len(addresses)), credentials.token_file
        commands = [
            ServerCommand(
                "worker",
                index,
                str(where),
                token_file,
                environment={**own, **credentials.certificates("worker", "worker", index)},
            )
            for index, where in enumerate(addresses)
        ]
        servers = [
            ServerProcess(
                command, show=self._shown_log(command.name, index), on_end=self._events.put
            )
            for index, command in enumerate(commands)
        ]
        self._servers += servers
        self._stateless = [server.name for server in servers]
        return servers

    def _shown_log(self, name: str, index: int) -> Callable[[str], None]:
        show = self._display.of_server(name, index)
        if self._settings.verbose:
            return show
        return lambda line: None if is_routine(line) else show(line)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if not self._workers:
            raise InterruptedRun(signum)
        self._events.put(signum)

    def _on_resize(self, signum: int, frame: FrameType | None) -> None:
        for chief in self._workers[:1]:
            for transcript in (chief.output, chief.errors):
                if isinstance(transcript, Copied):
                    transcript.fit()
            chief.send(signum)

    def _supervise(self, starter: ScriptWorkers) -> int:
        restarts = Restarts(self._settings.max_restarts)
        workers = [one.name for one in self._workers]
        outlive = self._settings.storage.outlives_servers
        tasks = dict(self._tasks) if self._settings.replicas > 1 else {}
        spares = self._settings.coordinators > 1
        if spares:
            tasks |= dict.fromkeys(workers, "chief:0")
        replicas = ReplicaRestarts(tasks, keep_state=outlive)
        supervision = Supervision(workers, restarts, outlive, replicas, self._stateless, spares)
        deadline = math.inf
        while supervision.running:
            self._restart(starter, supervision.take_due(time.monotonic()))
            signum = self._next_reaction(supervision, deadline)
            for worker in self._workers if signum else ():
                worker.send(signum)
            if signum:
                deadline = time.monotonic() + self._settings.grace
        return supervision.exit_code

    def _restart(self, starter: ScriptWorkers, names: Sequence[str]) -> None:
        for index, worker in enumerate(self._workers):
            if worker.name in names:
                again = starter.start(index, self._display, self._events.put)
                self._workers[index] = again
        for server in self._servers:
            if server.name in names:
                server.start()

    def _next_reaction(self, supervision: Supervision, deadline: float) -> int:
        """Wait for the next event; return the signal that it calls for, or 0."""
        try:
            event = self._next_event(min(deadline, supervision.next_due))
        except Empty:
            return signal.SIGKILL if time.monotonic() >= deadline else 0
        if isinstance(event, int):
            return supervision.signalled(event)
        return self._on_end(supervision, event)

    def _next_event(self, until: float) -> Process | int:
        """Wait for it until a time of the monotonic clock, or without a limit."""
        endless = until == math.inf
        patience = None if endless else max(0.0, until - time.monotonic())
        return self._events.get(timeout=patience)

    def _on_end(self, supervision: Supervision, process: Process) -> int:
        granted = supervision.restarts.granted
        now = time.monotonic()
        signum = supervision.ended(process.name, process.exit_code or 0, now)
        if signum:
            self._display.failed(process)
        elif supervision.restarts.granted > granted:
            most = self._settings.max_restarts
            self._display.restarts(process, granted + 1, most)
        elif process.name in supervision.rejoining:
            is_server = process.name in self._tasks
            self._display.rejoins(process, "the backup" if is_server else "the standby")
        return signum

    def _end_workers(self) -> None:
        for worker in self._workers:
            worker.end(grace=0)
