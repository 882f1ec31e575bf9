"""The command line of one reader server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer
from pydantic import Field

from stratagem_proto.configuration.commands import command
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.memory import loading
from stratagem_proto.secret_files import CHECKPOINT_KEY_FILE, TOKEN_FILE
from stratagem_rpc.serving import command_line
from stratagem_rpc.serving.command_line import Job, ServingOptions
from stratagem_rpc.serving.policy import read_policy
from stratagem_storage.checkpoint.policy import CheckpointPolicy

if TYPE_CHECKING:
    from stratagem_reader.server import ReaderServerSettings
    from stratagem_reader.source import Source


class ReaderServerOptions(ServingOptions):
    """Settings of `stratagem serve`."""

    kind: ClassVar[str] = "serve"

    source: str = Field(
        "",
        description="What to follow: the HOST:PORT of each parameter server, in the order of their "
        "tasks, separated by commas; serve://HOST:PORT, another such server; or a folder or URL of "
        "checkpoints.",
        json_schema_extra={"short": ["--from"]},
    )
    job: Job = Field("serve", description="Job name of this task.")
    lease_seconds: float = Field(
        60.0, ge=0.1, description="Seconds of silence after which a client is considered gone."
    )
    max_age: float | None = Field(
        None,
        gt=0,
        description="Seconds since its version was published after which it refuses to answer; by "
        "default it answers of the last one that it got.",
    )
    hold_seconds: float = Field(
        1.0,
        ge=0,
        description="Most seconds for which a client may keep a version, as its modules do for a "
        "forward.",
    )
    publication_bytes: int = Field(
        256 << 20,
        ge=0,
        description="Most bytes of increments that are kept for those who follow this server.",
    )
    checkpoint_key_file: Path | None = Field(
        None,
        description="File with the secret that has signed the checkpoints that are followed.",
    )
    policy: Path | None = Field(
        None, description="File that says which tasks and roles may look up what."
    )

    @property
    def secrets(self) -> dict[str, Path | None]:
        return {**super().secrets, "the key of checkpoints": self.checkpoint_key_file}

    def settings(self) -> ReaderServerSettings:
        """Return the settings of a server."""
        # It loads PyTorch, for which --help does not wait.
        from stratagem_reader.server import ReaderServerSettings

        if not self.source:
            raise InvalidArgumentError(
                "there is nothing to follow; give --from the addresses of parameter servers, "
                "serve://HOST:PORT, or a folder or URL of checkpoints"
            )
        given = self.serving()
        del given["source"], given["checkpoint_key_file"]
        given["policy"] = read_policy(self.policy) if self.policy else None
        return ReaderServerSettings(**given)

    def followed(self) -> Source:
        """Return what to follow."""
        from stratagem_reader.sources import source_at

        policy = CheckpointPolicy(key=CHECKPOINT_KEY_FILE.read(self.checkpoint_key_file))
        token = TOKEN_FILE.read(self.token_file)
        return source_at(self.source, token, policy=policy, is_whole=True)


app = typer.Typer(add_completion=False)


def serve(options: ReaderServerOptions, as_json: command_line.AsJson = False) -> None:
    """Follow what is published, and answer lookups of it. It changes nothing that it follows.

    Where several sources give a setting, the first of these counts: its flag, its environment
    variable, the task in TF_CONFIG, the table serve of the configuration file.

    If what it follows is lost, it goes on with what it has, and says so.

    Exit code: 0 after SIGTERM or Ctrl-C, and 2 if the server could not start because of a setting
    or an address.
    """
    # These load PyTorch, for which --help and a shell that completes options do not wait.
    with loading():
        from stratagem_reader.server import ReaderServer

    server = ReaderServer(options.settings(), options.followed())
    command_line.serve(server, options, as_json)


app.command()(command("reader server", ReaderServerOptions, serve))


def main() -> None:
    app()
