"""The command line of one worker server."""

from __future__ import annotations

import typer

from stratagem_proto.configuration.commands import command
from stratagem_proto.configuration.insecure import be_insecure
from stratagem_proto.memory import loading
from stratagem_proto.serving import command_line
from stratagem_worker.options import WorkerOptions

app = typer.Typer(add_completion=False)


def serve(options: WorkerOptions, as_json: command_line.AsJson = False) -> None:
    """Run the functions that a coordinator sends. The worker needs the cluster's secret.

    Where several sources give a setting, the first of these counts: its flag, its environment
    variable, the task in TF_CONFIG, the table worker of the configuration file.

    After SIGTERM or Ctrl-C the worker lets the function that runs end, for at most --drain-seconds.

    Exit code: 0 after SIGTERM or Ctrl-C, and 2 if the worker could not start because of a setting
    or an address.
    """
    # These load PyTorch, for which --help and a shell that completes options do not wait.
    with loading():
        from stratagem import config
        from stratagem_worker.server import WorkerServer

    config.set_logical_cpus(options.logical_cpus)
    if options.insecure:
        # For the workers of a strategy without servers, which functions make.
        be_insecure()
    server = WorkerServer(options.settings())
    command_line.serve(server, options, as_json)


app.command()(command("worker", WorkerOptions, serve))


def main() -> None:
    app()
