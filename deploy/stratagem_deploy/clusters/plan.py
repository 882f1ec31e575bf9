"""What a cluster is to be: its tasks, what its servers keep on disk, and their replicas."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratagem_proto.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from stratagem_psserver.settings import MOST_REPLICAS, Durability, ServerSettings
from stratagem_storage.stores.places import absolute_place, shared_place

if TYPE_CHECKING:
    from stratagem_psserver.server import ParameterServer
    from stratagem_rpc.serving.policy import AccessPolicy
    from stratagem_worker.server import WorkerServer

_LOG = logging.getLogger("stratagem")


@dataclass(frozen=True)
class Storage:
    """Files and folders of parameter servers.

    Attributes:
        restore: Absolute path or URL of the folder of checkpoints that they begin with; "" to begin
            with nothing.
        durability: What the end of a server may lose, as in `ServerSettings`.
        durability_folder: Absolute path of the folder for what durability needs; "" if it needs
            nothing.
        policy: Absolute path of the file that says what tasks and roles may do; "" if their roles
            alone say it.
        table_bytes: Most bytes of memory for the rows of each server's tables, as in
            `ServerSettings`; None to keep all rows in memory.
        table_folder: Absolute path of the folder for the other rows; "" for the system's.

    Raises:
        InvalidArgumentError: There is a durability without a folder, or a folder without one; or
            the policy cannot be read, or a line of it is not valid.
    """

    restore: str = ""
    durability: Durability = "none"
    durability_folder: str = ""
    policy: str = ""
    table_bytes: int | None = None
    table_folder: str = ""

    def __post_init__(self) -> None:
        if self.durability != "none" and not self.durability_folder:
            raise InvalidArgumentError(
                f"durability {self.durability!r} needs a folder on a disk; name it by "
                "--durability-folder or durability_folder="
            )
        if self.durability == "none" and self.durability_folder:
            raise InvalidArgumentError(
                f"nothing is kept in the folder {self.durability_folder!r} without a durability; "
                "give 'log' or 'snapshot' by --durability or durability=, or leave the folder out"
            )
        if self.table_folder and self.table_bytes is None:
            raise InvalidArgumentError(
                f"no rows of tables are in the folder {self.table_folder!r}, since all are in "
                "memory; give --table-bytes or table_bytes=, or leave the folder out"
            )
        self._read_policy()

    def _read_policy(self) -> AccessPolicy | None:
        if not self.policy:
            return None
        # It loads PyTorch, for which commands without policies do not wait.
        from stratagem_rpc.serving.policy import read_policy

        return read_policy(Path(self.policy))

    @classmethod
    def at(
        cls,
        restore: str | os.PathLike[str] | None,
        durability: Durability = "none",
        durability_folder: str | os.PathLike[str] | None = None,
        policy: str | os.PathLike[str] | None = None,
        table_bytes: int | None = None,
        table_folder: str | os.PathLike[str] | None = None,
    ) -> Storage:
        """Return files and folders by paths that may be relative; it raises like `Storage`."""
        place = "" if restore is None else str(shared_place(absolute_place(restore)))
        folder, rules, tables = (
            "" if path is None else os.path.abspath(path)
            for path in (durability_folder, policy, table_folder)
        )
        return cls(place, durability, folder, rules, table_bytes, tables)

    def check_written_by(self, ps: int) -> None:
        """Check that so many servers have written the checkpoint that servers begin with, if any.

        Each server restores its own part, so the parts that fewer servers leave would be missing.

        Raises:
            FailedPreconditionError: Another number of servers has.
        """
        if not self.restore:
            return
        # It loads torch, for which commands without checkpoints do not wait.
        from stratagem_storage.checkpoint.folder import open_checkpoint

        try:
            checkpoint = open_checkpoint(shared_place(self.restore))
        except NotFoundError:
            # As before the first save; or the name is misspelt.
            _LOG.warning("no checkpoint is in %r; servers begin with nothing", self.restore)
            return
        except DataLossError:
            # Servers say what is damaged.
            return
        if (written := len(checkpoint.index.servers)) != ps:
            by, remedy = f"{written} servers wrote it", f"Start {written}, or begin"
            if not written:
                by, remedy = "no servers, but a command or a program wrote it", "Begin"
            raise FailedPreconditionError(
                f"{ps} parameter servers cannot begin with {self.restore!r}: {by}, and each "
                f"restores only its own part. {remedy} without it and let the program restore it "
                "by strategy.restore(), which takes any number of servers"
            )

    @property
    def outlives_servers(self) -> bool:
        """Whether a server that has ended goes on where it was when it is started again."""
        return self.durability == "log"

    @property
    def settings(self) -> Mapping[str, Any]:
        """These as settings of a server, by name."""
        return {**asdict(self), "policy": self._read_policy()}

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a server's command line."""
        restore = ("--restore", self.restore) if self.restore else ()
        policy = ("--policy", self.policy) if self.policy else ()
        files = ("--table-folder", self.table_folder) if self.table_folder else ()
        tables = ("--table-bytes", str(self.table_bytes), *files) if self.table_bytes else ()
        if self.durability == "none":
            return (*restore, *policy, *tables)
        folder = "--durability-folder", self.durability_folder
        return (*restore, *policy, *tables, "--durability", self.durability, *folder)


def check_servers(
    ps: int, storage: Storage, replicas: int = 1, movable: bool = False, tasks: int = 0
) -> None:
    """Check that the parameter servers of a cluster can be what they are to be.

    Args:
        ps: Their number.
        storage: What they find on disk, and keep there.
        replicas: How many replicas each task has.
        movable: Whether tasks may move between them.
        tasks: How many tasks they have; 0 for as many.

    Raises:
        InvalidArgumentError: They cannot.
        FailedPreconditionError: Another number of servers wrote the checkpoint to begin with.
    """
    storage.check_written_by(tasks or ps)
    _check_tasks(ps, movable, tasks)
    _check_replicas(ps, storage, replicas)
    if movable:
        _check_movable(ps, storage, replicas)


def _check_tasks(ps: int, movable: bool, tasks: int) -> None:
    if tasks and not movable:
        raise InvalidArgumentError(
            f"{tasks} tasks are of use only where they can move to more servers; ask for movable, "
            "or leave the number of tasks out, and each server has one"
        )
    if tasks and tasks < ps:
        raise InvalidArgumentError(
            f"{tasks} tasks are too few for {ps} servers, each of which begins with one at least; "
            "ask for more tasks, or for fewer servers"
        )


def _check_replicas(ps: int, storage: Storage, replicas: int) -> None:
    if not 1 <= replicas <= MOST_REPLICAS:
        raise InvalidArgumentError(
            f"{replicas} replicas of each parameter server cannot be; ask for 1, or for "
            f"{MOST_REPLICAS}: a primary and a backup"
        )
    if replicas > 1 and not ps:
        raise InvalidArgumentError(
            f"a cluster without parameter servers has no use for {replicas} replicas; ask for "
            "servers, or leave the replicas out"
        )
    if replicas > 1 and storage.durability == "snapshot":
        raise InvalidArgumentError(
            "replicas cannot have durability 'snapshot': one that is started again would have a "
            "state of the past. Use 'log', or 'none', with which the other replica has the state"
        )


def _check_movable(ps: int, storage: Storage, replicas: int) -> None:
    if not ps:
        raise InvalidArgumentError(
            "a cluster without parameter servers has no tasks that could move; ask for servers, or "
            "leave movable out"
        )
    if replicas > 1:
        raise InvalidArgumentError(
            "servers that have replicas keep their tasks; ask for replicas=1, or leave movable out"
        )
    if storage.durability == "snapshot":
        raise InvalidArgumentError(
            "tasks cannot move with durability 'snapshot': a server that is started again would "
            "have a state of the past. Use 'log' or 'none'"
        )


def arbiter_folder(storage: Storage, private: Path) -> Path:
    """Return where an arbiter of this host keeps which replica serves.

    If servers keep something on disk, the arbiter has to as well; else it is in a private folder,
    which ends with the cluster.
    """
    root = Path(storage.durability_folder or private)
    root.mkdir(parents=True, exist_ok=True)
    return root / "arbiter"


def replica_settings(
    replicas: int, replica: int, arbiter: Path, movable: bool, tasks: int, servers: int
) -> Mapping[str, int | str]:
    """Return the settings by which a task has several processes, or may move; else none."""
    known = {"arbiter": f"file:{arbiter}"}
    if replicas > 1:
        return {"replicas": replicas, "replica": replica, **known}
    shared = {"tasks": tasks, "servers": servers} if tasks else {}
    return {**known, **shared} if movable else {}


def replica_options(
    replicas: int,
    replica: int,
    arbiter: Path,
    movable: bool = False,
    tasks: int = 0,
    servers: int = 0,
) -> tuple[str, ...]:
    """Return the same as options of a command line."""
    settings = replica_settings(replicas, replica, arbiter, movable, tasks, servers)
    return tuple(chain.from_iterable((f"--{name}", str(value)) for name, value in settings.items()))


# Nobody waits for the disk of this host for so long.
_READ_SECONDS = 10.0


def servers_with_tasks(arbiter: Path, tasks: int) -> Set[int]:
    """Return the numbers of the servers that serve tasks, or did when they ended.

    Args:
        arbiter: The folder of an arbiter of this host.
        tasks: How many tasks the cluster has. A server that was added has one more, in which there
            is nothing.

    Raises:
        UnavailableError: The disk fails.
        DataLossError: A file of the arbiter is damaged.
    """
    # These load PyTorch, for which runs whose tasks stay do not wait.
    from stratagem_psserver.replication.arbiter import Deadline
    from stratagem_psserver.replication.registers import FileRegister

    registers = [FileRegister(str(arbiter), ServerSettings(task=task)) for task in range(tasks)]
    views = [register.read(Deadline(_READ_SECONDS)) for register in registers]
    return {view.primary.index for view in views if view is not None and view.HasField("primary")}


_NO_REPLICATION: Mapping[str, int | str] = {}


@dataclass(frozen=True)
class Plan:
    """The tasks of a cluster, and the settings of the servers among them.

    Attributes:
        ps: Number of parameter servers.
        workers: Number of workers that make calls.
        worker_servers: Number of workers that serve a coordinator.
        token: The cluster's secret.
        lease_seconds: Silence after which a server takes a client for dead; None for what is usual
            for its kind.
        storage: The files and folders of parameter servers.
        replicas: How many processes have the state of each parameter server.
        movable: Whether tasks may move between parameter servers.
        tls: Whether processes are known by certificates, and encrypt what they send.
        tasks: How many tasks parameter servers share; 0 for one on each.

    Raises:
        InvalidArgumentError: A number is negative or there are no tasks, there are workers of both
            kinds, or a folder is given without parameter servers.
    """

    ps: int
    workers: int
    worker_servers: int
    token: str = field(repr=False)
    lease_seconds: float | None
    storage: Storage
    replicas: int = 1
    movable: bool = False
    tls: bool = False
    tasks: int = 0

    def __post_init__(self) -> None:
        numbers = self.ps, self.workers, self.worker_servers
        if min(numbers) < 0 or not any(numbers):
            raise InvalidArgumentError(
                f"a cluster of {self.ps} parameter servers, {self.workers} workers and "
                f"{self.worker_servers} worker servers cannot be; ask for at least one "
                "of them"
            )
        if self.workers and self.worker_servers:
            raise InvalidArgumentError(
                "the workers of a cluster either run the program or serve a "
                "coordinator; ask for workers or for worker_servers, not for both"
            )
        storage = self.storage
        folder = storage.restore or storage.durability_folder or storage.policy
        folder = folder or ("--table-bytes" if storage.table_bytes else "")
        if folder and not self.ps:
            raise InvalidArgumentError(
                f"a cluster without parameter servers has no use for {folder!r}; ask for servers, "
                "or leave it out, and restore a checkpoint by strategy.restore()"
            )

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of tasks of each job."""
        return {"ps": self.ps, "worker": self.workers + self.worker_servers}

    @property
    def served(self) -> Mapping[str, int]:
        """The number of servers of each job."""
        return {"ps": self.ps, "worker": self.worker_servers}

    def replicas_of(self, job: str) -> int:
        """Return how many processes each server of a job has."""
        return self.replicas if job == "ps" else 1

    def new_server(
        self,
        job: str,
        index: int,
        address: str,
        *,
        insecure: bool = False,
        replication: Mapping[str, int | str] = _NO_REPLICATION,
    ) -> ParameterServer | WorkerServer:
        """Return the server of a task, not started, for this process.

        `replication` is what makes a parameter server a replica (`replica_settings`).
        """
        # These load PyTorch, for which commands that make no server here do not wait.
        from stratagem_psserver.server import ParameterServer
        from stratagem_worker.server import WorkerServer
        from stratagem_worker.settings import WorkerSettings

        options: dict[str, Any] = {"bind": address, "task": index, "token": self.token}
        if self.lease_seconds is not None:
            options["lease_seconds"] = self.lease_seconds
        if job == "worker":
            return WorkerServer(WorkerSettings(**options, insecure=insecure))
        options |= {**self.storage.settings, **replication}
        return ParameterServer(ServerSettings(**options, insecure=insecure))


def planned(
    ps: int,
    workers: int | None,
    worker_servers: int,
    lease_seconds: float | None,
    storage: Storage,
    replicas: int = 1,
) -> Plan:
    """Return the plan of a cluster, with a secret made for it.

    Without a number of workers there is one, or none where there are worker servers.
    """
    return Plan(
        ps,
        workers if workers is not None else int(not worker_servers),
        worker_servers,
        token=secrets.token_urlsafe(32),
        lease_seconds=lease_seconds,
        storage=storage,
        replicas=replicas,
    )
