"""Running a training script, once per worker, with parameter servers of its own."""

from __future__ import annotations

import json
import math
import os
import secrets
import signal
import sys
import time
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import ClassVar

from pydantic import Field

from stratagem_deploy.certificates.subjects import LocalAuthority, Subject
from stratagem_deploy.clusters.plan import (
    Storage,
    arbiter_folder,
    replica_options,
    servers_with_tasks,
)
from stratagem_deploy.clusters.servers import (
    RestartableServer,
    ServerCommand,
    ServerProcess,
    patience_for_restarts,
    places_of_tasks,
    replicated,
    serving,
)
from stratagem_deploy.output import Copied, Display
from stratagem_deploy.processes.process import (
    Process,
    equal_order_of_sets,
    import_path,
    share_of_cores,
)
from stratagem_deploy.processes.resources import (
    PrivateDirectory,
    ReservedAddresses,
    RunRecord,
    on_record,
)
from stratagem_deploy.processes.supervision import ReplicaRestarts, Restarts, Supervision
from stratagem_deploy.running.additions import Addition, asked_at
from stratagem_proto.configuration.model import ProcessSettings, variable
from stratagem_psserver.settings import (
    MOST_REPLICAS,
    DurabilityFolder,
    DurabilityOption,
    PolicyFile,
    TableBytes,
    TableFolder,
)
from stratagem_rpc.certificates.presented import presenting
from stratagem_rpc.notices import Notice, watched


class RunOptions(ProcessSettings):
    """Settings of `stratagem run`."""

    kind: ClassVar[str] = "run"

    ps: int = Field(1, ge=0, description="Number of servers; 0 for workers without servers.")
    workers: int = Field(1, ge=1, description="Number of workers.")
    grace: float = Field(
        10.0, ge=0, description="Seconds that processes get to end after a failure or Ctrl-C."
    )
    notice: str = Field(
        "",
        description="Where it will stand that the run is to end, as by SIGTERM: file:PATH, once "
        "there is such a file; or kubernetes:NAMESPACE/POD, once that pod is to be deleted.",
    )
    max_restarts: int = Field(
        0,
        ge=0,
        description="How often failed workers are restarted, and servers that have a log, in the "
        "whole run.",
    )
    restore: Path | None = Field(
        None,
        description="Folder or URL of checkpoints; servers start from the latest, if there is one.",
    )
    replicas: int = Field(
        1,
        ge=1,
        le=MOST_REPLICAS,
        description="Processes with the state of each server: 2 for a primary and a backup.",
    )
    movable: bool = Field(
        False,
        description="Let tasks move between servers while the script runs, by `stratagem servers`.",
    )
    tasks: int = Field(
        0,
        ge=0,
        description="Tasks that --movable servers share, as many as there may be servers one day; "
        "0 for one on each.",
    )
    coordinators: int = Field(
        0,
        ge=0,
        description="Processes that run the script to coordinate the workers, which then are "
        "servers: 2 for one and another one that stands by; 0 to run it on each worker.",
    )
    durability: DurabilityOption = "none"
    durability_folder: DurabilityFolder = None
    table_bytes: TableBytes = None
    table_folder: TableFolder = None
    policy: PolicyFile = None
    full_tracebacks: bool = Field(
        False, description="Print all frames of tracebacks, including those of libraries."
    )
    verbose: bool = Field(
        False,
        description="Show how to watch the servers, and everything that they log.",
        json_schema_extra={"short": ["-v"]},
    )


@dataclass(frozen=True)
class ScriptSettings:
    """The script to run, and what the run was told.

    Attributes:
        command: The script and its arguments.
        options: The options of the command.
        storage: The files and folders of the servers, which are among them.
        notice: What says that the run is to end, as SIGTERM does.
        tls: Whether the processes know each other by certificates, and encrypt what they send.
    """

    command: tuple[str, ...]
    options: RunOptions
    storage: Storage
    notice: Notice | None
    tls: bool


class RunCredentials:
    """A token for all processes of a run, and where they encrypt, a certificate for each.

    Attributes:
        token: The secret of the cluster.
        token_file: The file with it.
    """

    def __init__(self, directory: PrivateDirectory, tls: bool) -> None:
        """Make them, in a directory that goes with the run."""
        self.token = secrets.token_urlsafe(32)
        self.token_file = directory.write_secret("token", self.token)
        self._authority = LocalAuthority(directory.path) if tls else None

    def certificates(self, role: str, job: str = "", task: int = 0) -> Mapping[str, str]:
        """Return an environment in which a process has its certificate, if there are any."""
        if self._authority is None:
            return {}
        return self._authority.environment(Subject(role, job, task))

    @property
    def of_operator(self) -> Path | None:
        """The certificates of commands that ask the servers and move tasks; None without any."""
        return self._authority.folder(Subject("operator")) if self._authority else None


_ROUTINE_LEVELS = {"debug", "info"}


# What a terminal shows beside the line, or nobody needs there.
_BESIDE = {"event", "level", "task", "server", "timestamp", "exception"}


_OTHER_NAME = "No match found for server name"


def for_people(line: str) -> Sequence[str]:
    """Return what a line of a server says, in lines for a terminal; none if it is routine."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        # A client looks for a task where the server of another one has it, and finds out itself.
        return [] if _OTHER_NAME in line else [line]
    if not isinstance(record, dict) or "level" not in record:
        return [line]
    if record["level"] in _ROUTINE_LEVELS:
        return []
    details = ", ".join(f"{key} {said}" for key, said in record.items() if key not in _BESIDE)
    told = f"{record['event']}: {details}" if details else str(record["event"])
    return [told, *str(record.get("exception", "")).splitlines()]


class RunServers:
    """Makes the servers of a run, and knows what each of their processes is.

    Args:
        settings: Those of the run.
        credentials: What the processes show each other.
        display: Shows what they write.
        on_end: Called from another thread whenever a process has ended.

    Attributes:
        tasks: The task that each process of a parameter server began with, by its name.
        stateless: The names of the worker servers.
    """

    def __init__(
        self,
        settings: ScriptSettings,
        credentials: RunCredentials,
        display: Display,
        on_end: Callable[[Process], None],
    ) -> None:
        self._options, self._storage = settings.options, settings.storage
        self._credentials = credentials
        self._display, self._on_end = display, on_end
        self._arbiter = arbiter_folder(settings.storage, credentials.token_file.parent)
        config = settings.options.config
        self._config = {variable("config"): os.path.abspath(config)} if config else {}
        self._processes: list[ServerProcess] = []
        self._count = 0
        self.tasks: dict[str, str] = {}
        self.stateless: Sequence[str] = ()

    @property
    def most(self) -> int:
        """How many parameter servers the run needs, with those that an earlier run has added."""
        if not self._options.movable:
            return self._options.ps
        return max([self._options.ps, *(1 + number for number in self._with_tasks())])

    def is_empty(self, name: str) -> bool:
        """Return whether the parameter server of a process has no task of the cluster."""
        number = int(self.tasks[name].removeprefix("ps:"))
        return self._options.movable and number not in self._with_tasks()

    def _with_tasks(self) -> Set[int]:
        return servers_with_tasks(self._arbiter, self._options.tasks or self._options.ps)

    def places(self, own: Sequence[str], seconds: float) -> Sequence[str]:
        """Return where each task is found, once servers serve all of them.

        Args:
            own: The addresses of the servers.
            seconds: The longest wait.

        Raises:
            DeadlineExceededError: They do not in time.
        """
        if not self._options.tasks:
            return own
        found = places_of_tasks(own, self._options.tasks, self._credentials.token, seconds)
        return [*own, *found[len(own) :]]

    def start(self, names: Sequence[str]) -> None:
        """Start processes again that have ended."""
        for process in self._processes:
            if process.name in names:
                process.start()

    def new_server(self, where: ReservedAddresses) -> RestartableServer:
        """Return the next parameter server, not started."""
        index, self._count = self._count, self._count + 1
        options, credentials = self._options, self._credentials
        own = {
            **(patience_for_restarts() if options.max_restarts else {}),
            **self._config,
            **credentials.certificates("server", "ps", index),
        }

        def new_replica(address: str, number: int) -> RestartableServer:
            replication = replica_options(
                *(options.replicas, number, self._arbiter),
                *(options.movable, options.tasks, options.ps),
            )
            command = ServerCommand(
                *("ps", index, address, credentials.token_file),
                options=(*self._storage.options, *replication),
                environment=own,
                replica=number if options.replicas > 1 else None,
            )
            self.tasks[command.name] = f"ps:{index}"
            return self._process(command)

        return replicated(f"ps:{index}", where.replicas, credentials.token, new_replica)

    def new_workers(self, addresses: Sequence[ReservedAddresses]) -> Sequence[RestartableServer]:
        """Return the workers that run functions of a coordinator, not started."""
        cores = share_of_cores(len(addresses))
        own = {**cores, **equal_order_of_sets(), **self._config}
        credentials = self._credentials
        servers = [
            self._process(
                ServerCommand(
                    *("worker", index, str(where), credentials.token_file),
                    environment={**own, **credentials.certificates("worker", "worker", index)},
                )
            )
            for index, where in enumerate(addresses)
        ]
        self.stateless = [server.name for server in servers]
        return servers

    def _process(self, command: ServerCommand) -> ServerProcess:
        show, verbose = self._display.of_server(command.name, command.task), self._options.verbose

        def show_log(line: str) -> None:
            for shown in [line] if verbose else for_people(line):
                show(shown)

        process = ServerProcess(command, show=show_log, on_end=self._on_end)
        self._processes.append(process)
        return process


# By its name, because it would load PyTorch, for which the command need not wait.
_STANDING_BY = "stratagem_deploy.running.standing_by"


@dataclass(frozen=True)
class ScriptWorkers:
    """What the workers of one run have in common.

    Attributes:
        command: The script and its arguments.
        cluster: The addresses of the tasks by job, as in TF_CONFIG.
        credentials: What they show the servers.
        full_tracebacks: Whether our own frames are printed, too.
        coordinators: How many processes run the script, of which one coordinates and the others
            stand by; 0 if each worker runs it.
    """

    command: Sequence[str]
    cluster: Mapping[str, Sequence[str]]
    credentials: RunCredentials
    full_tracebacks: bool = False
    coordinators: int = 0

    @property
    def count(self) -> int:
        """How many processes run the script."""
        return self.coordinators or len(self.cluster["worker"])

    def start(self, index: int, display: Display, on_end: Callable[[Process], None]) -> Process:
        """Start a process that runs the script.

        Args:
            index: Its index; worker 0 is the chief, and so are all that may coordinate.
            display: Where its output goes.
            on_end: Called from another thread, once, when it has ended.
        """
        name = f"coordinator:{index}" if self.coordinators else f"worker:{index}"
        output, errors = display.of_worker(name, 0 if self.coordinators else index)
        waits = ("-m", _STANDING_BY) if self.coordinators > 1 else ()
        return Process(
            name,
            [sys.executable, *waits, *self.command],
            environment={**import_path(), **self.environment(index)},
            output=output,
            errors=errors,
            on_end=on_end,
        )

    def environment(self, index: int) -> dict[str, str]:
        """Return what the environment of a process has that ours has not."""
        role = "chief" if self.coordinators or not index else "worker"
        job, index = ("chief", 0) if self.coordinators else ("worker", index)
        certificates = self.credentials.certificates(role, job, index)
        task = {"type": job, "index": index}
        return {
            "TF_CONFIG": json.dumps({"cluster": self.cluster, "task": task}),
            "STRATAGEM_TOKEN_FILE": str(self.credentials.token_file),
            **certificates,
            # Read when `stratagem` is imported, and by nobody before.
            "STRATAGEM_FOLD_TRACEBACKS": "" if self.full_tracebacks else "1",
            # Through a pipe, Python would keep its words back until it ends.
            "PYTHONUNBUFFERED": "1",
            **share_of_cores(len(self.cluster["worker"])),
            **equal_order_of_sets(),
        }


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
        self._settings, self._options = settings, settings.options
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
            on_notice = partial(self._events.put, signal.SIGTERM)
            resources.enter_context(watched(self._settings.notice, on_notice))
            return self._supervise(starter)

    def _start(self, resources: ExitStack) -> ScriptWorkers:
        self._interruptible = True
        settings, options = self._settings, self._options
        counts = {"ps": options.ps, "worker": options.workers}
        counts |= {"chief": 1} if options.coordinators else {}
        replicas = {"ps": options.replicas}
        addresses = {
            job: [
                resources.enter_context(ReservedAddresses(replicas.get(job, 1)))
                for _ in range(count)
            ]
            for job, count in counts.items()
        }
        cluster = {job: [*map(str, tasks)] for job, tasks in addresses.items()}
        directory = PrivateDirectory()
        resources.callback(directory.close)
        credentials = RunCredentials(directory, settings.tls)
        if credentials.of_operator is not None:
            resources.enter_context(presenting(credentials.of_operator))
        self._start_servers(addresses, credentials)
        cluster["ps"] = [*self._servers.places(cluster["ps"], _SERVER_START_SECONDS)]
        self._interruptible = False
        folder = credentials.token_file.parent
        # By which `stratagem status` and similar commands find this run.
        record = RunRecord(
            pid=os.getpid(),
            script=settings.command[0],
            cluster=cluster,
            token_file=credentials.token_file,
            tls=credentials.of_operator,
            additions=folder / "additions" if options.movable else None,
        )
        self._display.started(cluster, record.credentials)
        if record.additions is not None:
            resources.enter_context(asked_at(record.additions, self._events.put))
        if cluster["ps"]:
            resources.enter_context(on_record(record))
        resources.callback(self._end_workers)
        starter = ScriptWorkers(
            settings.command, cluster, credentials, options.full_tracebacks, options.coordinators
        )
        for index in range(starter.count):
            worker = starter.start(index, self._display, self._events.put)
            self._workers.append(worker)
        return starter

    def _start_servers(
        self, addresses: Mapping[str, Sequence[ReservedAddresses]], credentials: RunCredentials
    ) -> None:
        """Start those of the cluster, and those of an earlier run that are needed."""
        servers = RunServers(self._settings, credentials, self._display, self._events.put)
        added = [
            self._resources.enter_context(ReservedAddresses())
            for _ in range(servers.most - self._options.ps)
        ]
        self._started = [*map(servers.new_server, [*addresses["ps"], *added])]
        if self._options.coordinators:
            self._started += servers.new_workers(addresses["worker"])
        self._servers = servers
        self._resources.enter_context(serving(self._started, _SERVER_START_SECONDS))

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
        options, servers = self._options, self._servers
        workers = [one.name for one in self._workers]
        spares = options.coordinators > 1
        restarting = servers.tasks if options.replicas > 1 or options.movable else {}
        replicas = ReplicaRestarts(
            # More servers may come.
            ChainMap(restarting, dict.fromkeys(workers, "chief:0") if spares else {}),
            self._needs_no_other,
        )
        supervision = Supervision(
            workers,
            Restarts(options.max_restarts),
            self._settings.storage.outlives_servers,
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
                deadline = time.monotonic() + self._options.grace
        return supervision.exit_code

    def _needs_no_other(self, name: str) -> bool:
        """Return whether nothing is lost with a process, even if no other one has its state."""
        if self._options.movable and name in self._servers.tasks:
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
        wait = min(deadline, supervision.next_due) - time.monotonic()
        try:
            event = self._events.get(timeout=min(_LONGEST_WAIT_SECONDS, max(0.0, wait)))
        except Empty:
            return signal.SIGKILL if time.monotonic() >= deadline else 0
        if isinstance(event, int):
            return supervision.signalled(event)
        if isinstance(event, Addition):
            self._add_server(event)
            return 0
        return self._on_end(supervision, event)

    def _on_end(self, supervision: Supervision, process: Process) -> int:
        granted = supervision.restarts.granted
        now = time.monotonic()
        signum = supervision.ended(process.name, process.exit_code or 0, now)
        # A signal also ends those that stand by, when the work is done.
        if signum and supervision.failure == process.name:
            self._display.failed(process)
        elif supervision.restarts.granted > granted:
            most = self._options.max_restarts
            self._display.restarts(process, granted + 1, most)
        elif process.name in supervision.rejoining:
            part = "a server without tasks" if self._options.movable else "the backup"
            is_server = process.name in self._servers.tasks
            self._display.rejoins(process, part if is_server else "the standby")
        return signum

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
