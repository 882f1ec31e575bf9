"""The command line of one worker server."""

from __future__ import annotations

from typing import Annotated

import typer

from stratagem import config
from stratagem_proto.serving import command_line as options
from stratagem_proto.token_file import read_token
from stratagem_proto.transport import AUTO
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings

app = typer.Typer(add_completion=False)

LogicalCpus = Annotated[
    int,
    typer.Option(
        min=1,
        help="Logical CPUs, on each of which a replica can run where there is no GPU.",
    ),
]


@app.command()
def serve(  # noqa: PLR0913  # one parameter for each option
    bind: options.Bind = "127.0.0.1:0",
    health_bind: options.HealthBind = "127.0.0.1:0",
    metrics_bind: options.MetricsBind = "",
    job: options.Job = "worker",
    task: options.TaskIndex = 0,
    token_file: options.TokenFile = None,
    insecure: options.Insecure = False,
    lease_seconds: options.LeaseSeconds = 10.0,
    drain_seconds: options.DrainSeconds = 10.0,
    transport: options.Transport = AUTO,
    ready_file: options.ReadyFile = None,
    logical_cpus: LogicalCpus = 1,
) -> None:
    """Run the functions that a coordinator sends. It needs the cluster's secret."""
    config.set_logical_cpus(logical_cpus)
    with options.explained("worker"):
        settings = WorkerSettings(
            bind=bind,
            health_bind=health_bind,
            metrics_bind=metrics_bind,
            job=job,
            task=task,
            token=read_token(token_file),
            insecure=insecure,
            lease_seconds=lease_seconds,
            drain_seconds=drain_seconds,
            transport=transport,
        )
        options.serve(WorkerServer(settings), token_file, ready_file)


def main() -> None:
    app()
