"""The command line of one parameter server."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from stratagem_proto.errors import InvalidArgumentError, StratagemError
from stratagem_psserver import log
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings, half_of_memory

app = typer.Typer(add_completion=False)


Bind = Annotated[
    str, typer.Option(help="host:port to serve on; port 0 takes a free one.")
]
HealthBind = Annotated[
    str, typer.Option(help="host:port of health checks and reflection.")
]
Job = Annotated[str, typer.Option(help="Job name of this task.")]
TaskIndex = Annotated[int, typer.Option(min=0, help="Index within the job.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(envvar="STRATAGEM_TOKEN_FILE", help="File with the cluster's secret."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Serve other machines unencrypted.")
]
LeaseSeconds = Annotated[
    float, typer.Option(min=0.1, help="Silence after which a client is dead.")
]
StagedBytes = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Most bytes that requests may occupy; half of the memory if not given.",
        show_default=False,
    ),
]
DrainSeconds = Annotated[
    float, typer.Option(min=0, help="Time for running calls to end on SIGTERM.")
]
Restore = Annotated[
    Path | None,
    typer.Option(help="Folder of checkpoints; begin with the latest, if there is one."),
]
ReadyFile = Annotated[
    Path | None, typer.Option(help="Written with the addresses once serving.")
]


@app.command()
def serve(  # noqa: PLR0913  # one parameter for each option
    bind: Bind = "127.0.0.1:0",
    health_bind: HealthBind = "127.0.0.1:0",
    job: Job = "ps",
    task: TaskIndex = 0,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    lease_seconds: LeaseSeconds = 30.0,
    staged_bytes: StagedBytes = None,
    drain_seconds: DrainSeconds = 10.0,
    restore: Restore = None,
    ready_file: ReadyFile = None,
) -> None:
    """Host variables and update them for the workers of a cluster."""
    try:
        settings = ServerSettings(
            bind=bind,
            health_bind=health_bind,
            job=job,
            task=task,
            token=read_token(token_file),
            insecure=insecure,
            lease_seconds=lease_seconds,
            staged_bytes=staged_bytes or half_of_memory(),
            drain_seconds=drain_seconds,
            restore=str(restore or ""),
        )
        check_folder(ready_file)
        log.to_stderr()
        warn_of_readers(token_file)
        run(settings, ready_file)
    except (StratagemError, OSError) as error:
        typer.echo(f"parameter server: {error}", err=True)
        raise typer.Exit(2) from error


def read_token(path: Path | None) -> str:
    """The secret in a file; "" without a file.

    Raises:
        InvalidArgumentError: The file cannot be read or is empty.
    """
    if path is None:
        return ""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(
            f"the token file {str(path)!r} cannot be read: {error}; check --token-file "
            "and STRATAGEM_TOKEN_FILE"
        ) from error
    if not token:
        raise InvalidArgumentError(
            f"the token file {str(path)!r} is empty; write a secret into it"
        )
    return token


def check_folder(ready_file: Path | None) -> None:
    """Checks that a ready file can be written, before anybody waits for it.

    Raises:
        InvalidArgumentError: Its folder does not exist.
    """
    if ready_file is not None and not ready_file.parent.is_dir():
        raise InvalidArgumentError(
            f"the ready file {str(ready_file)!r} cannot be written: create its folder "
            "first"
        )


def warn_of_readers(path: Path | None) -> None:
    """Says so if other users of the machine may read the secret."""
    if path is not None and path.stat().st_mode & stat.S_IROTH:
        log.LOG.warning(
            "other users of this machine can read the cluster token",
            file=str(path),
            remedy=f"chmod 600 {path}",
        )


def run(settings: ServerSettings, ready_file: Path | None) -> None:
    """Serves until SIGTERM or SIGINT, then drains."""
    with asked_to_stop() as asked, ParameterServer(settings) as server:
        if ready_file is not None:
            announce(server, ready_file)
        asked.recv(1)


@contextmanager
def asked_to_stop() -> Iterator[socket.socket]:
    """A socket that can be read once SIGTERM or SIGINT has come.

    A lock that a handler releases would not do: the main thread may be just about to
    wait for it, or another thread may get the signal, and the wait goes on for ever.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        yield reader
        signal.set_wakeup_fd(-1)


def announce(server: ParameterServer, ready_file: Path) -> None:
    """Writes the addresses so that a reader sees all of the file or none."""
    facts = {
        "address": server.address,
        "health_address": server.health_address,
        "pid": os.getpid(),
    }
    with tempfile.NamedTemporaryFile(
        "w", dir=ready_file.parent, delete=False, encoding="utf-8"
    ) as file:
        json.dump(facts, file)
    os.replace(file.name, ready_file)


def main() -> None:
    app()
