"""The command line of one worker server."""

from __future__ import annotations

import typer

from stratagem_proto.serving import command_line as options
from stratagem_proto.token_file import read_token
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings

app = typer.Typer(add_completion=False)


@app.command()
def serve(  # noqa: PLR0913  # one parameter for each option
    bind: options.Bind = "127.0.0.1:0",
    health_bind: options.HealthBind = "127.0.0.1:0",
    job: options.Job = "worker",
    task: options.TaskIndex = 0,
    token_file: options.TokenFile = None,
    insecure: options.Insecure = False,
    lease_seconds: options.LeaseSeconds = 10.0,
    drain_seconds: options.DrainSeconds = 10.0,
    ready_file: options.ReadyFile = None,
) -> None:
    """Run the functions that a coordinator sends. It needs the cluster's secret."""
    with options.explained("worker"):
        settings = WorkerSettings(
            bind=bind,
            health_bind=health_bind,
            job=job,
            task=task,
            token=read_token(token_file),
            insecure=insecure,
            lease_seconds=lease_seconds,
            drain_seconds=drain_seconds,
        )
        options.serve(WorkerServer(settings), token_file, ready_file)


def main() -> None:
    app()
