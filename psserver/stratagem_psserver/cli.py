"""The command line of one parameter server."""

from __future__ import annotations

import typer

from stratagem_proto.configuration.commands import command
from stratagem_proto.serving import command_line
from stratagem_psserver.options import ServerOptions
from stratagem_psserver.process import keep_what_is_loaded
from stratagem_psserver.server import ParameterServer

app = typer.Typer(add_completion=False)


def serve(options: ServerOptions, as_json: command_line.AsJson = False) -> None:
    """Host variables and update them for the workers of a cluster.

    A flag counts before its environment variable, this before the task that TF_CONFIG says this is,
    and this before the table ps of the file.

    SIGTERM and Ctrl-C let what runs end, for at most --drain-seconds.

    Exit code: 0 after SIGTERM or Ctrl-C, 2 if it could not serve: a setting, an address, a
    checkpoint that cannot be.
    """
    server = ParameterServer(options.settings())
    keep_what_is_loaded()
    command_line.serve(server, options, as_json)


app.command()(command("parameter server", ServerOptions, serve))


def main() -> None:
    app()
