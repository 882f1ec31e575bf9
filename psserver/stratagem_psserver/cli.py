"""The command line of one parameter server: flags, environment variables, configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import typer
from pydantic import Field

from stratagem_proto.configuration.commands import command
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.memory import half_of_memory, loading, most_of_memory
from stratagem_proto.secret_files import CHECKPOINT_KEY_FILE
from stratagem_psserver.settings import (
    DurabilityFolder,
    DurabilityOption,
    PolicyFile,
    ServerSettings,
    TableBytes,
    TableFolder,
)
from stratagem_rpc.serving import command_line
from stratagem_rpc.serving.command_line import Job, ServingOptions
from stratagem_rpc.serving.policy import read_policy
from stratagem_storage.stores.places import absolute_place


class ServerOptions(ServingOptions):
    """Settings of `stratagem ps`."""

    kind: ClassVar[str] = "ps"

    job: Job = Field("ps", description="Job name of this task.")
    reconnect_seconds: float = Field(
        5.0, ge=0.1, description="Seconds that a client has to reconnect after a lost connection."
    )
    rejoin_seconds: float = Field(
        0.0,
        ge=0,
        description="Seconds that workers which step together wait for one that was lost, so that "
        "it can be started again; 0 to fail at once.",
    )
    staged_bytes: int | None = Field(
        None,
        ge=1,
        description="Most bytes that requests may take, those of one client at most three quarters "
        "of what others leave; the default is half of the memory.",
    )
    variable_bytes: int | None = Field(
        None,
        ge=1,
        description="Most bytes that variables and the state of their optimizers may take; the "
        "default is four fifths of the memory.",
    )
    table_bytes: TableBytes = None
    table_folder: TableFolder = None
    durability: DurabilityOption = "none"
    durability_folder: DurabilityFolder = None
    snapshot_seconds: float = Field(
        60.0, ge=0.1, description="Seconds between images, with --durability snapshot."
    )
    log_bytes: int = Field(
        1 << 30,
        ge=1 << 20,
        description="Bytes of the log after which an image of the state replaces it.",
    )
    log_records: int = Field(
        20_000,
        ge=1,
        description="Changes in the log after which an image replaces it; a start applies 10,000 "
        "small ones in about a second.",
    )
    replicas: int = Field(
        1,
        ge=1,
        le=2,
        description="Processes with the state of this task: 2 for a primary and a backup.",
    )
    replica: int = Field(0, ge=0, le=1, description="Number of this process among them.")
    arbiter: str = Field(
        "",
        description="Who decides which replica is the primary: file:PATH, on one host; "
        "kubernetes:NAMESPACE/NAME, a Lease; or etcd:HOST:PORT[,HOST:PORT...]/PREFIX. With one "
        "replica, where the task is, which may then move.",
    )
    tasks: int = Field(
        0,
        ge=0,
        description="Tasks that servers with an arbiter share, as many as there may be servers one "
        "day; 0 for one on each.",
    )
    servers: int = Field(
        0, ge=0, description="Servers that begin with these tasks; those that join later have none."
    )
    advertise: str = Field(
        "", description="HOST:PORT at which others reach this replica; the default is --bind."
    )
    failover_seconds: float = Field(
        1.0,
        ge=0.1,
        description="Seconds without a sign of the primary after which the backup takes over.",
    )
    verify_seconds: float = Field(
        60.0,
        ge=0.1,
        description="Seconds between comparisons of all bytes of primary and backup.",
    )
    publication_bytes: int = Field(
        256 << 20,
        ge=0,
        description="Most bytes of increments of published versions, for readers that follow.",
    )
    restore: Path | None = Field(
        None,
        description="Folder or URL of checkpoints; the server restores the latest one, if any.",
    )
    checkpoint_root: Path | None = Field(
        None,
        description="Folder or URL below which alone the server reads and writes checkpoints.",
    )
    checkpoint_key_file: Path | None = Field(
        None,
        description="File with the secret that signs checkpoints; the server refuses others.",
    )
    policy: PolicyFile = None

    @property
    def secrets(self) -> dict[str, Path | None]:
        return {**super().secrets, "the key of checkpoints": self.checkpoint_key_file}

    def settings(self) -> ServerSettings:
        """Return these options as the settings of a server.

        Raises:
            InvalidArgumentError: As for `ServerSettings`; or there are seconds between images, and
                no images.
        """
        self._check_snapshots()
        given = self.serving()
        key = CHECKPOINT_KEY_FILE.read(given.pop("checkpoint_key_file"))
        root = absolute_place(self.checkpoint_root) if self.checkpoint_root else ""
        folders = {
            "restore": str(self.restore or ""),
            "checkpoint_root": str(root),
            "table_folder": str(self.table_folder or ""),
            "durability_folder": str(self.durability_folder or ""),
        }
        own = {
            "staged_bytes": self.staged_bytes or half_of_memory(),
            "variable_bytes": self.variable_bytes or most_of_memory(),
            "checkpoint_key": key,
            "policy": read_policy(self.policy) if self.policy else None,
        }
        return ServerSettings(**{**given, **own, **folders})

    def _check_snapshots(self) -> None:
        if "snapshot_seconds" in self.model_fields_set and self.durability != "snapshot":
            raise InvalidArgumentError(
                f"--snapshot-seconds {self.snapshot_seconds:g} has no effect with --durability "
                f"{self.durability}; give --durability snapshot, or leave --snapshot-seconds out"
            )


app = typer.Typer(add_completion=False)


def serve(options: ServerOptions, as_json: command_line.AsJson = False) -> None:
    """Host variables and update them for the workers of a cluster.

    Where several sources give a setting, the first of these counts: its flag, its environment
    variable, the task in TF_CONFIG, the table ps of the configuration file.

    After SIGTERM or Ctrl-C the server finishes the calls that run, for at most --drain-seconds.

    Exit code: 0 after SIGTERM or Ctrl-C, and 2 if the server could not start because of a setting,
    an address or a checkpoint.
    """
    # This loads PyTorch, for which --help and a shell that completes options do not wait.
    with loading():
        from stratagem_psserver.server import ParameterServer

        server = ParameterServer(options.settings())
    command_line.serve(server, options, as_json)


app.command()(command("parameter server", ServerOptions, serve))


def main() -> None:
    app()
