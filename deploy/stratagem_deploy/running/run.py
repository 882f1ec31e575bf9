"""Running a training script, once per worker, with parameter servers of its own."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import ChainMap
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType

from stratagem_deploy.clusters.servers import RestartableServer, serving
from stratagem_deploy.output.display import Display
from stratagem_deploy.output.screen import Copied
from stratagem_deploy.processes.addresses import ReservedAddresses
from stratagem_deploy.processes.private_directory import PrivateDirectory
from stratagem_deploy.processes.process import Process
from stratagem_deploy.processes.replica_restarts import ReplicaRestarts
from stratagem_deploy.processes.run_records import RunRecord, on_record
from stratagem_deploy.processes.supervision import Restarts, Supervision
from stratagem_deploy.running.additions import Addition, asked_at
from stratagem_deploy.running.credentials import RunCredentials
from stratagem_deploy.running.servers import RunServers
from stratagem_deploy.running.settings import ScriptSettings
from stratagem_deploy.running.workers import ScriptWorkers
from stratagem_proto.certificates.presented import presenting
from stratagem_proto.notices import watched

_SERVER_START_SECONDS = 60.0

# A signal that comes just before a thread begins to wait does not wake it: of 20,000, two did not.
_LONGEST_WAIT_SECONDS = 1.0


class InterruptedRun(KeyboardInterrupt):
    """A signal came while the servers started."""

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.signum = signum


class ScriptRun:
    """One run of a script on a cluster of local processes.

    Everything that happens, happens in the main thread, one event after the other: signals, the
    ends of processes, and what other processes ask for.
    """

    def __init__(self, settings: ScriptSettings, display: Display) -> None:
        self._settings = settings
        self._display = display
        self._events: SimpleQueue[Process | int | Addition] = SimpleQueue()
        self._started: list[RestartableServer] = []
        self._workers: list[Process] = []
        self._resources = ExitStack()
        self._servers: RunServers
        # Between two steps of anything later, an exception would leave half of it done.
        self._interruptible = False

    def exit_code(self) -> int:
        """Run the script; return its exit code, that of the first worker to fail.

        Raises:
            UnavailableError: A server ended instead of serving.
            DeadlineExceededError: A server did not start in time.
        """
        with self._resources as resources:
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
        self._interruptible = True
        addresses = {
            job: [resources.enter_context(self._reserved(job)) for _ in range(count)]
            for job, count in self._counts.items()
        }
        cluster = {job: [*map(str, tasks)] for job, tasks in addresses.items()}
        directory = PrivateDirectory()
        resources.callback(directory.close)
        credentials = RunCredentials(directory, self._settings.tls)
        if credentials.of_operator is not None:
            resources.enter_context(presenting(credentials.of_operator))
        self._start_servers(addresses, credentials)
        self._interruptible = False
        record = self._record(cluster, credentials)
        self._display.started(cluster, record.credentials)
        if record.additions is not None:
            resources.enter_context(asked_at(record.additions, self._events.put))
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

    def _start_servers(
        self, addresses: Mapping[str, Sequence[ReservedAddresses]], credentials: RunCredentials
    ) -> None:
        """Start those of the cluster, and those that an earlier run has added and that are needed.

        Args:
            addresses: Where the tasks of the cluster are, by job.
            credentials: What processes show each other.
        """
        servers = RunServers(self._settings, credentials, self._display, self._events.put)
        added = [
            self._resources.enter_context(ReservedAddresses())
            for _ in range(servers.most - self._settings.ps)
        ]
        self._started = [*map(servers.new_server, [*addresses["ps"], *added])]
        if self._settings.coordinators:
            self._started += servers.new_workers(addresses["worker"])
        self._servers = servers
        self._resources.enter_context(serving(self._started, _SERVER_START_SECONDS))

    def _record(
        self, cluster: Mapping[str, Sequence[str]], credentials: RunCredentials
    ) -> RunRecord:
        """Return the record by which `stratagem status` and similar commands find this run."""
        folder = credentials.token_file.parent
        return RunRecord(
            pid=os.getpid(),
            script=self._settings.command[0],
            cluster={job: list(tasks) for job, tasks in cluster.items()},
            token_file=credentials.token_file,
            tls=credentials.of_operator,
            additions=folder / "additions" if self._settings.movable else None,
        )

    @property
    def _counts(self) -> Mapping[str, int]:
        settings = self._settings
        counts = {"ps": settings.ps, "worker": settings.workers}
        return {**counts, "chief": 1} if settings.coordinators else counts

    def _reserved(self, job: str) -> ReservedAddresses:
        return ReservedAddresses(self._settings.replicas if job == "ps" else 1)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        # Python drops an exception in some places, for instance in a callback of a weak reference.
        self._events.put(signum)
        if self._interruptible:
            self._interruptible = False
            raise InterruptedRun(signum)

    def _on_resize(self, signum: int, frame: FrameType | None) -> None:
        for chief in self._workers[:1]:
            for transcript in (chief.output, chief.errors):
                if isinstance(transcript, Copied):
                    transcript.fit()
            chief.send(signum)

    def _supervise(self, starter: ScriptWorkers) -> int:
        settings, servers = self._settings, self._servers
        workers = [one.name for one in self._workers]
        spares = settings.coordinators > 1
        restarting = servers.tasks if settings.replicas > 1 or settings.movable else {}
        replicas = ReplicaRestarts(
            # More servers may come.
            ChainMap(restarting, dict.fromkeys(workers, "chief:0") if spares else {}),
            self._needs_no_other,
        )
        supervision = Supervision(
            workers,
            Restarts(settings.max_restarts),
            settings.storage.outlives_servers,
            replicas,
            servers.stateless,
            spares,
        )
        deadline = math.inf
        while supervision.running:
            self._restart(starter, supervision.take_due(time.monotonic()))
            signum = self._next_reaction(supervision, deadline)
            for worker in self._workers if signum else ():
                worker.send(signum)
            if signum:
                deadline = time.monotonic() + self._settings.grace
        return supervision.exit_code

    def _needs_no_other(self, name: str) -> bool:
        """Return whether nothing is lost with a process, even if no other one has its state."""
        if self._settings.movable and name in self._servers.tasks:
            return self._servers.is_empty(name)
        return self._settings.storage.outlives_servers

    def _restart(self, starter: ScriptWorkers, names: Sequence[str]) -> None:
        for index, worker in enumerate(self._workers):
            if worker.name in names:
                again = starter.start(index, self._display, self._events.put)
                self._workers[index] = again
        self._servers.start(names)

    def _next_reaction(self, supervision: Supervision, deadline: float) -> int:
        """Wait for the next event; return the signal that it calls for, or 0."""
        try:
            event = self._next_event(min(deadline, supervision.next_due))
        except Empty:
            return signal.SIGKILL if time.monotonic() >= deadline else 0
        if isinstance(event, int):
            return supervision.signalled(event)
        if isinstance(event, Addition):
            self._add_server(event)
            return 0
        return self._on_end(supervision, event)

    def _next_event(self, until: float) -> Process | int | Addition:
        """Wait for it for some time, but not after a time of the monotonic clock."""
        patience = min(_LONGEST_WAIT_SECONDS, max(0.0, until - time.monotonic()))
        return self._events.get(timeout=patience)

    def _on_end(self, supervision: Supervision, process: Process) -> int:
        granted = supervision.restarts.granted
        now = time.monotonic()
        signum = supervision.ended(process.name, process.exit_code or 0, now)
        # A signal also ends those that stand by, when the work is done.
        if signum and supervision.failure == process.name:
            self._display.failed(process)
        elif supervision.restarts.granted > granted:
            most = self._settings.max_restarts
            self._display.restarts(process, granted + 1, most)
        elif process.name in supervision.rejoining:
            self._display.rejoins(process, self._next_part(process.name))
        return signum

    def _next_part(self, name: str) -> str:
        """Return what a process is when it was started again, for people."""
        if name not in self._servers.tasks:
            return "the standby"
        return "a server without tasks" if self._settings.movable else "the backup"

    def _add_server(self, addition: Addition) -> None:
        """Start one more parameter server, and tell who asks where it is."""
        where = self._resources.enter_context(ReservedAddresses())
        server = self._servers.new_server(where)
        self._started.append(server)
        server.start()
        addition.grant(server, str(where), _SERVER_START_SECONDS)

    def _end_workers(self) -> None:
        for worker in self._workers:
            worker.end(grace=0)
