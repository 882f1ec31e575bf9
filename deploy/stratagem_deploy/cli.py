"""The `stratagem` command.

What a subcommand needs is loaded by it, so that `--help` need not wait for PyTorch.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from stratagem_deploy.certificates import cli as certificates
from stratagem_deploy.checkpoints import cli as checkpoints
from stratagem_deploy.completion import CompletedGroup, reader
from stratagem_deploy.dashboard import cli as dashboard
from stratagem_deploy.logs import cli as logs
from stratagem_deploy.moving import cli as moving
from stratagem_deploy.watching import cli as watching
from stratagem_deploy.watching.looks import nobody_to_ask
from stratagem_proto.serving.pages import Page, ShownServer, offering

# What follows these commands is theirs, even where it looks like options: to know them takes what
# they load.
_THEIRS = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
}

app = typer.Typer(
    cls=CompletedGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Parameter servers and workers for PyTorch.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stratagem {version('stratagem')}")
        raise typer.Exit


@app.callback()
def stratagem(
    shown: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Parameter servers and workers for PyTorch."""


app.add_typer(certificates.app, name="certs")
app.add_typer(checkpoints.app, name="checkpoint")
app.add_typer(logs.app, name="log")
app.add_typer(moving.app, name="servers")
for watch in (watching.status, watching.top, watching.variables, watching.doctor):
    app.command()(watch)
app.command()(dashboard.dashboard)


@app.command(
    "run",
    context_settings=_THEIRS,
    add_help_option=False,
    help="Run a script on local servers and workers; see `stratagem run --help`.",
)
def run_script(context: typer.Context) -> None:
    reader("run")(args=context.args, prog_name="stratagem run")


@app.command(
    "ps",
    context_settings=_THEIRS,
    add_help_option=False,
    help="Run one parameter server; see `stratagem ps --help`.",
)
def serve_variables(context: typer.Context) -> None:
    from stratagem_psserver import environment

    environment.tune()
    with offering(_page_of):
        reader("ps")(args=context.args, prog_name="stratagem ps")


@app.command(
    "worker",
    context_settings=_THEIRS,
    add_help_option=False,
    help="Run one worker server; see `stratagem worker --help`.",
)
def serve_functions(context: typer.Context) -> None:
    with offering(_page_of):
        reader("worker")(args=context.args, prog_name="stratagem worker")


def _page_of(server: ShownServer) -> Page:
    # Few servers have one.
    from stratagem_deploy.dashboard.server_page import ServerPage

    return ServerPage(server)


@app.command(
    "bench",
    context_settings=_THEIRS,
    add_help_option=False,
    help="Run benchmarks in a clone of the sources; see `stratagem bench --help`.",
)
def measure(context: typer.Context) -> None:
    """Run the benchmarks of the current folder.

    Exit code: that of the benchmarks, or 2 if there are none.
    """
    if not Path("benchmarks", "__main__.py").is_file():
        typer.echo(
            "stratagem: there are no benchmarks here, and none are installed. Call "
            "this in a clone of the sources, where `make bench` runs them all",
            err=True,
        )
        raise typer.Exit(2)
    benchmarks = [sys.executable, "-m", "benchmarks", *context.args]
    raise typer.Exit(subprocess.call(benchmarks))


@app.command()
def health(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="The server's address for health checks.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds to wait for the answer.")
    ] = 5.0,
) -> None:
    """Check the health of a server.

    Exit code: 0 if it serves, 1 if it does not, for instance while it drains, and 2 if it cannot be
    reached.
    """
    from stratagem_deploy.health import check_health

    with nobody_to_ask():
        report = check_health(address, timeout)
    typer.echo(report.to_json() if as_json else str(report))
    raise typer.Exit(report.health)


def main() -> None:
    """Entry point of the `stratagem` command."""
    app()


if __name__ == "__main__":
    main()
