"""The command line of one worker server."""

from __future__ import annotations

import typer

from stratagem import config
from stratagem_proto.configuration.commands import command
from stratagem_proto.serving import command_line
from stratagem_worker.options import WorkerOptions
from stratagem_worker.server import WorkerServer

app = typer.Typer(add_completion=False)


def serve(options: WorkerOptions, as_json: command_line.AsJson = False) -> None:
    """Run the functions that a coordinator sends. It needs the cluster's secret.

    A flag counts before its environment variable, this before the task that TF_CONFIG says this is,
    and this before the table worker of the file.

    SIGTERM and Ctrl-C let what runs end, for at most --drain-seconds.

    Exit code: 0 after SIGTERM or Ctrl-C, 2 if it could not serve: a setting, an address, a
    checkpoint that cannot be.
    """
    config.set_logical_cpus(options.logical_cpus)
    server = WorkerServer(options.settings())
    command_line.serve(server, options, as_json)


app.command()(command("worker", WorkerOptions, serve))


def main() -> None:
    app()
