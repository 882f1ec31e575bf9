"""The settings of one parameter server."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.memory import half_of_memory
from stratagem_proto.secret_files import CHECKPOINT_KEY_FILE
from stratagem_rpc.serving.policy import AccessPolicy
from stratagem_rpc.serving.settings import ServingSettings
from stratagem_storage.checkpoint.policy import CheckpointPolicy
from stratagem_storage.stores.places import shared_place

Durability: TypeAlias = Literal["none", "snapshot", "log"]

_LEAST_TABLE_BYTES = 1 << 20

# Options of the commands that start servers.
DurabilityOption = Annotated[
    Durability,
    Field(
        description="What the end of a server may lose: all since the last checkpoint (none) or "
        "image (snapshot), or nothing that was acknowledged (log)."
    ),
]
PolicyFile = Annotated[
    Path | None,
    Field(description="File that says which tasks and roles may do what to which variables."),
]
DurabilityFolder = Annotated[
    Path | None,
    Field(description="Folder on a disk for what --durability keeps, a subfolder for each server."),
]
TableBytes = Annotated[
    int | None,
    Field(
        ge=_LEAST_TABLE_BYTES,
        description="Most bytes of memory for the rows of a server's tables and their optimizers' "
        "state; colder rows are in files. By default all rows are in memory.",
    ),
]
TableFolder = Annotated[
    Path | None,
    Field(
        description="Folder on a local disk for those files; the default is the system's "
        "temporary folder."
    ),
]

MOST_REPLICAS = 2


@dataclass(frozen=True)
class ServerSettings(ServingSettings):
    """Settings of a parameter server.

    Attributes:
        reconnect_seconds: Seconds that a client has to reconnect after its connection was closed,
            as the system does when a process ends; then its session ends. A larger value than the
            lease counts as the lease.
        rejoin_seconds: Seconds that workers which step together wait for one that was lost, so that
            it can be started again; 0 to fail at once.
        staged_bytes: Most bytes that requests and answers may occupy until they are applied or
            sent; those of one client at most three quarters of what others leave. Memory of large
            requests that is kept for later ones counts, until other requests need the bytes. The
            memory that clients of the same host share with the server has a separate limit of a
            quarter as much; tensors that do not fit into it are sent.
        variable_bytes: Most bytes that variables may take, with the state of optimizers and the
            indices of tables; None for no limit. The copies that snapshots keep, and the temporary
            copy by which a table grows, do not count.
        table_bytes: Most bytes of memory for the rows of tables, with the state of optimizers; the
            other rows are in files in `table_folder`. Their keys and indices count in
            `variable_bytes`. None to keep all rows in memory.
        table_folder: Folder on a local disk for those files; "" for the system's temporary folder.
            The files have no names and end with the process.
        restore: Folder of checkpoints, or its URL, whose latest one the server restores when it
            starts, if there is any; "" to restore none.
        checkpoint_root: Absolute path or URL of the folder below which checkpoints are read and
            written, that of `restore` included; "" for any folder.
        checkpoint_key: The secret that signs checkpoints: others are refused. By default that in
            the file that STRATAGEM_CHECKPOINT_KEY_FILE names; "" to take them unsigned.
        policy: What tasks and roles may do to which variables; None for all that their roles may.
        durability: What the end of the process may lose: "none" keeps nothing on disk; with
            "snapshot" a process that is killed loses what is younger than the last image, and one
            that is stopped nothing; with "log" nothing is lost that was acknowledged.
        durability_folder: The folder for what is kept on disk, a subfolder for each server.
        snapshot_seconds: With "snapshot", seconds from one image to the next.
        log_bytes: After so many bytes of the log, an image replaces what was logged before.
        log_records: After so many records, likewise.
        replicas: How many processes have the state of the task: 1, or 2 for a primary that serves
            and a backup that takes over.
        replica: The number of this process among them, from 0.
        arbiter: Who decides which replica is the primary: "file:PATH" on one host,
            "kubernetes:NAMESPACE/NAME" of a Lease, or "etcd:HOST:PORT[,HOST:PORT...]/PREFIX".
            With one replica it keeps which server serves the task, which may then move to another
            one; "" if it cannot.
        tasks: How many tasks the servers of a cluster share at first, as many as there may be
            servers one day; 0 for one on each.
        servers: How many servers share them: each begins with the tasks whose index, divided by
            this, leaves its number. Servers that join later begin with none.
        server: The number of the server, where it serves a task that began elsewhere; None where
            the task has the server's number.
        advertise: The "host:port" at which others reach this replica; by default `bind`.
        failover_seconds: The backup takes over after so many seconds without a sign of the primary.
        verify_seconds: Seconds between comparisons of all bytes of primary and backup.
        publication_bytes: Most bytes that the increments of published versions take, which are kept
            for readers that follow; the oldest go first. Who lacks one takes a whole version.

    Raises:
        InvalidArgumentError: As for servers of every kind; or what is said of replicas does not go
            together, or there is a folder for durability and nothing to keep there.
    """

    job: str = "ps"
    reconnect_seconds: float = 5.0
    rejoin_seconds: float = 0.0
    staged_bytes: int = field(default_factory=half_of_memory)
    variable_bytes: int | None = None
    table_bytes: int | None = None
    table_folder: str = ""
    restore: str = ""
    checkpoint_root: str = ""
    checkpoint_key: str = field(default_factory=CHECKPOINT_KEY_FILE.from_environment, repr=False)
    policy: AccessPolicy | None = None
    durability: Durability = "none"
    durability_folder: str = ""
    snapshot_seconds: float = 60.0
    log_bytes: int = 1 << 30
    log_records: int = 20_000
    replicas: int = 1
    replica: int = 0
    arbiter: str = ""
    tasks: int = 0
    servers: int = 0
    server: int | None = None
    advertise: str = ""
    failover_seconds: float = 1.0
    verify_seconds: float = 60.0
    publication_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        super().__post_init__()
        root, place = self.checkpoint_root, shared_place(self.checkpoint_root)
        is_there = not isinstance(place, Path) or (place.is_absolute() and place.is_dir())
        if root and not is_there:
            raise InvalidArgumentError(
                f"there is no folder {root!r} for checkpoints of {self.label}; make it, or give "
                "another --checkpoint-root by its absolute path"
            )
        self._check_tables()
        if self.durability_folder and self.durability == "none":
            raise InvalidArgumentError(
                f"{self.label} keeps nothing in the folder {self.durability_folder!r} with "
                "--durability none; give --durability log or snapshot, or leave "
                "--durability-folder out"
            )
        if self.replicas not in (1, MOST_REPLICAS):
            raise InvalidArgumentError(
                f"{self.label} cannot have {self.replicas} replicas; give --replicas 1, or 2 "
                "for a primary and a backup"
            )
        if not 0 <= self.replica < self.replicas:
            raise InvalidArgumentError(
                f"--replica {self.replica} is none of the {self.replicas} of {self.label}, "
                "which count from 0; give a smaller number, or --replicas 2 to all of them"
            )
        if self.replicas > 1:
            self._check_replicated()
        elif self.arbiter:
            self._check_movable()
        if self.tasks or self.servers:
            self._check_shared()

    def _check_tables(self) -> None:
        if self.table_bytes is not None:
            object.__setattr__(self, "table_folder", self.table_folder or gettempdir())
            check_table_folder(self.label, self.table_folder, self.table_bytes)
        elif self.table_folder:
            raise InvalidArgumentError(
                f"{self.label} has no files for the folder {self.table_folder!r}, since all rows "
                "of its tables are in memory; give --table-bytes, or leave --table-folder out"
            )

    def _check_replicated(self) -> None:
        if not self.arbiter:
            raise InvalidArgumentError(
                f"{self.label} has {self.replicas} replicas, and nobody to decide which of "
                "them serves; give all of them the same --arbiter, for instance file:PATH if they "
                "are on one host"
            )
        if self.durability == "snapshot":
            raise InvalidArgumentError(
                f"replicas of {self.label} cannot have --durability snapshot: one that is started "
                "again would have a state of the past. Use log, or none, with which the other "
                "replica has the state"
            )

    def _check_movable(self) -> None:
        if self.durability == "snapshot":
            raise InvalidArgumentError(
                f"{self.label} cannot move with --durability snapshot: a server that is started "
                "again would have a state of the past. Use log or none, or leave --arbiter out"
            )

    def _check_shared(self) -> None:
        told = f"{self.label} cannot share {self.tasks} tasks with {self.servers} servers"
        if not self.is_movable:
            raise InvalidArgumentError(
                f"{told}, since its task stays where it is; give all of them the same --arbiter "
                "and one replica, or leave --tasks and --servers out"
            )
        if not 1 <= self.servers <= self.tasks:
            raise InvalidArgumentError(
                f"{told}, each of which begins with one at least; give all of them the same "
                "numbers: --tasks of the tasks that TF_CONFIG lists, and --servers of the servers "
                "that begin with them, which may be fewer"
            )

    @property
    def checkpoints(self) -> CheckpointPolicy:
        """What the server demands of checkpoints."""
        root = shared_place(self.checkpoint_root) if self.checkpoint_root else None
        return CheckpointPolicy(root, self.checkpoint_key)

    @property
    def is_movable(self) -> bool:
        """Whether the task may move to another server."""
        return self.replicas == 1 and bool(self.arbiter)

    @property
    def server_number(self) -> int:
        """The number of the server, which is the index of the task that it begins with."""
        return self.task if self.server is None else self.server

    @property
    def first_shared(self) -> range:
        """The tasks that the server begins with besides that of its number."""
        is_first = self.server_number < self.servers
        return (
            range(self.server_number + self.servers, self.tasks, self.servers)
            if is_first
            else range(0)
        )

    @property
    def certified_task(self) -> int:
        """The number of the server, whichever task it serves."""
        return self.server_number

    @property
    def replica_number(self) -> int:
        """What tells this process from all others that may have the state of the task."""
        return self.server_number if self.is_movable else self.replica


_IN_MEMORY = ("tmpfs", "ramfs")


def check_table_folder(label: str, folder: str, table_bytes: int) -> None:
    """Check that the rows of a server's tables can be in files of a folder.

    Raises:
        InvalidArgumentError: The system cannot take room on a disk before it is written, there is
            no such folder, it is full or in memory itself, or there would be fewer rows in memory
            than one request may need.
    """
    if not hasattr(os, "posix_fallocate"):
        raise InvalidArgumentError(
            f"{label} cannot keep rows of tables in files on {sys.platform}, which takes no room "
            "on a disk before it is written, so that a full one would fail in the middle of a "
            "step; leave --table-bytes out, or run servers on Linux"
        )
    if table_bytes < _LEAST_TABLE_BYTES:
        raise InvalidArgumentError(
            f"{label} cannot work with {table_bytes} bytes of tables in memory; give --table-bytes "
            f"{_LEAST_TABLE_BYTES} or more"
        )
    try:
        with TemporaryFile(dir=folder, prefix="stratagem-table-") as file:
            os.posix_fallocate(file.fileno(), 0, _LEAST_TABLE_BYTES)
    except OSError as error:
        raise InvalidArgumentError(
            f"{label} cannot write files of its tables in {folder!r}, where it tried to take "
            f"{_LEAST_TABLE_BYTES} bytes: {error.strerror}; give --table-folder a folder on a "
            "local disk that it may write to and that has room"
        ) from error
    if (kind := _file_system(folder)) in _IN_MEMORY:
        raise InvalidArgumentError(
            f"the folder {folder!r} for the tables of {label} is a {kind}, which is memory itself; "
            "give --table-folder a folder on a local disk"
        )


def _file_system(folder: str) -> str:
    """Return the type of the file system of a folder; "" where the system does not say it."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    kinds = [line.partition(" - ")[2].split()[0] for line in mounts if line.split()[2] == number]
    return kinds[0] if kinds else ""
