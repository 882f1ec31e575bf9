"""The command line of one parameter server."""

from __future__ import annotations

import typer

from stratagem_proto.configuration.commands import command
from stratagem_proto.serving import command_line
from stratagem_psserver.options import ServerOptions
from stratagem_psserver.server import ParameterServer

app = typer.Typer(add_completion=False)


def serve(options: ServerOptions) -> None:
    """Host variables and update them for the workers of a cluster.

    A flag counts before its environment variable, this before the task that TF_CONFIG
    says this is, and this before the table ps of the file.
    """
    server = ParameterServer(options.settings())
    command_line.serve(server, options)


app.command()(command("parameter server", ServerOptions, serve))


def main() -> None:
    app()
