"""The command line of a server process, from its options to its end."""

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

from stratagem_proto import token_file, transport
from stratagem_proto.errors import InvalidArgumentError, StratagemError
from stratagem_proto.serving import log
from stratagem_proto.serving.server import Server

Bind = Annotated[
    str, typer.Option(help="host:port to serve on; port 0 takes a free one.")
]
HealthBind = Annotated[
    str, typer.Option(help="host:port of health checks and reflection.")
]
MetricsBind = Annotated[
    str,
    typer.Option(
        help="host:port where Prometheus is answered, for instance 0.0.0.0:2224; "
        "nowhere if not given.",
        show_default=False,
    ),
]
Job = Annotated[str, typer.Option(help="Job name of this task.")]
TaskIndex = Annotated[int, typer.Option(min=0, help="Index within the job.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(envvar=token_file.VARIABLE, help="File with the cluster's secret."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Serve other machines unencrypted.")
]
LeaseSeconds = Annotated[
    float, typer.Option(min=0.1, help="Silence after which a client is dead.")
]
DrainSeconds = Annotated[
    float, typer.Option(min=0, help="Time for what runs to end on SIGTERM.")
]
Transport = Annotated[
    str,
    typer.Option(
        envvar=transport.VARIABLE,
        help="auto: also a Unix socket for processes of this host; grpc: gRPC alone.",
    ),
]
ReadyFile = Annotated[
    Path | None, typer.Option(help="Written with the addresses once serving.")
]

# Container engines put secrets there, where all users of the one container read them.
_MOUNTED_SECRETS = Path("/run/secrets")


@contextmanager
def explained(program: str) -> Iterator[None]:
    """Ends the process with one sentence where the body raises what users may cause."""
    try:
        yield
    except (StratagemError, OSError) as error:
        typer.echo(f"{program}: {error}", err=True)
        raise typer.Exit(2) from error


def serve(server: Server, token_file: Path | None, ready_file: Path | None) -> None:
    """Serves until SIGTERM or SIGINT, then drains.

    Args:
        server: It has not started.
        token_file: Where its secret came from.
        ready_file: Written once it serves.

    Raises:
        InvalidArgumentError: The ready file has no folder.
        UnavailableError: An address cannot be bound.
    """
    _check_folder(ready_file)
    log.to_stderr()
    _warn_of_readers(token_file)
    with _asked_to_stop() as asked, server:
        if ready_file is not None:
            _announce(server, ready_file)
        asked.recv(1)


def _check_folder(ready_file: Path | None) -> None:
    if ready_file is not None and not ready_file.parent.is_dir():
        raise InvalidArgumentError(
            f"the ready file {str(ready_file)!r} cannot be written: create its folder "
            "first"
        )


def _warn_of_readers(path: Path | None) -> None:
    """Says so if other users of the machine may read the secret."""
    if path is None or _MOUNTED_SECRETS in path.parents:
        return
    if path.stat().st_mode & stat.S_IROTH:
        log.LOG.warning(
            "other users of this machine can read the cluster token",
            file=str(path),
            remedy=f"chmod 600 {path}",
        )


@contextmanager
def _asked_to_stop() -> Iterator[socket.socket]:
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


def _announce(server: Server, ready_file: Path) -> None:
    """Writes the addresses so that a reader sees all of the file or none."""
    facts = {
        "address": server.address,
        "health_address": server.health_address,
        "metrics_address": server.metrics_address,
        "pid": os.getpid(),
    }
    with tempfile.NamedTemporaryFile(
        "w", dir=ready_file.parent, delete=False, encoding="utf-8"
    ) as file:
        json.dump(facts, file)
    os.replace(file.name, ready_file)
