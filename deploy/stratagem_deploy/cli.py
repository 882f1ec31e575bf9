"""The `stratagem` command.

What a subcommand needs is loaded by it, so that `--help` need not wait for PyTorch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stratagem_deploy import following, logs, moving
from stratagem_deploy.certificates import cli as certificates
from stratagem_deploy.checkpoints import cli as checkpoints
from stratagem_deploy.dashboard import cli as dashboard
from stratagem_deploy.watching import cli as watching
from stratagem_deploy.watching.looks import nobody_to_ask
from stratagem_rpc.serving.pages import Page, ShownServer, offering

# What follows these commands is theirs, even where it looks like options: to know them takes what
# they load.
_THEIRS = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
}

# The modules whose `app` reads the arguments of these commands. None of them loads PyTorch.
_READERS = {
    "run": "stratagem_deploy.running.cli",
    "ps": "stratagem_psserver.cli",
    "worker": "stratagem_worker.cli",
    "serve": "stratagem_reader.cli",
}


def _reader(command: str) -> typer.Typer:
    """Return what reads the arguments of a command, and load it."""
    app: typer.Typer = import_module(_READERS[command]).app
    return app


class _CompletedGroup(TyperGroup):
    """A group of commands, some of which have their options elsewhere."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name of a command, the command and its arguments.

        While a shell completes a line (`resilient_parsing`), the command is the one that reads the
        arguments, so that its options are looked up where they stand.
        """
        name, command, rest = super().resolve_command(ctx, args)
        if ctx.resilient_parsing and name in _READERS:
            command = typer.main.get_command(_reader(name))
        return name, command, rest


app = typer.Typer(
    cls=_CompletedGroup,
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
app.command()(following.follow)
app.command()(following.export)


@app.command(
    "run",
    context_settings=_THEIRS,
    add_help_option=False,
    help="Run a script on local servers and workers; see `stratagem run --help`.",
)
def run_script(context: typer.Context) -> None:
    _reader("run")(args=context.args, prog_name="stratagem run")


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
        _reader("ps")(args=context.args, prog_name="stratagem ps")


@app.command(
    "worker",
    context_settings=_THEIRS,
    add_help_option=False,
    help="Run one worker server; see `stratagem worker --help`.",
)
def serve_functions(context: typer.Context) -> None:
    with offering(_page_of):
        _reader("worker")(args=context.args, prog_name="stratagem worker")


@app.command(
    "serve",
    context_settings=_THEIRS,
    add_help_option=False,
    help="Run one reader server, which answers lookups; see `stratagem serve --help`.",
)
def serve_versions(context: typer.Context) -> None:
    from stratagem_psserver import environment

    # Rows are found in large memory, as in parameter servers.
    environment.tune()
    with offering(_page_of):
        _reader("serve")(args=context.args, prog_name="stratagem serve")


def _page_of(server: ShownServer) -> Page:
    # Few servers have one.
    from stratagem_deploy.dashboard.pages import ServerPage

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
    from stratagem_rpc.serving.settings import check_server_address

    with nobody_to_ask():
        check_server_address(address)
    began = time.monotonic()
    code, detail = _ask_health(address, timeout)
    seconds = time.monotonic() - began
    if as_json:
        facts = {"address": address, "health": _HEALTH[code], "seconds": seconds, "detail": detail}
        typer.echo(json.dumps(facts))
    elif _HEALTH[code] == "UNREACHABLE":
        typer.echo(f"{address} cannot be reached: {detail}")
    else:
        word = "does not serve" if code else "serves"
        typer.echo(f"{address} {word} ({1000 * seconds:.0f} ms)")
    raise typer.Exit(code)


# By the exit codes.
_HEALTH = ("SERVING", "NOT_SERVING", "UNREACHABLE")


def _ask_health(address: str, timeout: float) -> tuple[int, str]:
    """Return the exit code that says how a server is, and why it cannot be reached, or ""."""
    import grpc
    from grpc_health.v1 import health_pb2

    from stratagem_rpc.channel import ASKING_CHANNEL_OPTIONS

    # Probes have no certificates, so nothing is encrypted there.
    with grpc.insecure_channel(address, options=ASKING_CHANNEL_OPTIONS) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = check(health_pb2.HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                return _HEALTH.index("UNREACHABLE"), str(error.details())
            return _HEALTH.index("UNREACHABLE"), (
                "it does not answer health checks there. This is probably its main port; give the "
                "one of --health-bind, by default a free one that its log names"
            )
    serves = answer.status == health_pb2.HealthCheckResponse.SERVING
    return _HEALTH.index("SERVING" if serves else "NOT_SERVING"), ""


def main() -> None:
    """Entry point of the `stratagem` command."""
    app()


if __name__ == "__main__":
    main()
