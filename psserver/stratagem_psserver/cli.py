"""The command line of one parameter server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stratagem_proto.serving import command_line as options
from stratagem_proto.token_file import read_token
from stratagem_proto.transport import AUTO
from stratagem_psserver.memory import half_of_memory
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings

app = typer.Typer(add_completion=False)

StagedBytes = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Most bytes that requests may occupy; half of the memory if not given.",
        show_default=False,
    ),
]
VariableBytes = Annotated[
    int | None,
    typer.Option(
        min=1,
        envvar="STRATAGEM_VARIABLE_BYTES",
        help="Most bytes that variables and their state may take; else no limit.",
        show_default=False,
    ),
]
Restore = Annotated[
    Path | None,
    typer.Option(help="Folder of checkpoints; begin with the latest, if there is one."),
]


@app.command()
def serve(  # noqa: PLR0913  # one parameter for each option
    bind: options.Bind = "127.0.0.1:0",
    health_bind: options.HealthBind = "127.0.0.1:0",
    metrics_bind: options.MetricsBind = "",
    job: options.Job = "ps",
    task: options.TaskIndex = 0,
    token_file: options.TokenFile = None,
    insecure: options.Insecure = False,
    lease_seconds: options.LeaseSeconds = 30.0,
    staged_bytes: StagedBytes = None,
    variable_bytes: VariableBytes = None,
    drain_seconds: options.DrainSeconds = 10.0,
    restore: Restore = None,
    transport: options.Transport = AUTO,
    ready_file: options.ReadyFile = None,
) -> None:
    """Host variables and update them for the workers of a cluster."""
    with options.explained("parameter server"):
        settings = ServerSettings(
            bind=bind,
            health_bind=health_bind,
            metrics_bind=metrics_bind,
            job=job,
            task=task,
            token=read_token(token_file),
            insecure=insecure,
            lease_seconds=lease_seconds,
            staged_bytes=staged_bytes or half_of_memory(),
            variable_bytes=variable_bytes,
            drain_seconds=drain_seconds,
            transport=transport,
            restore=str(restore or ""),
        )
        options.serve(ParameterServer(settings), token_file, ready_file)


def main() -> None:
    app()
