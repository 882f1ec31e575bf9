"""The command line of one parameter server."""

from __future__ import annotations

import typer

from stratagem_proto.configuration.commands import command
from stratagem_proto.memory import loading
from stratagem_proto.serving import command_line
from stratagem_psserver.options import ServerOptions

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
