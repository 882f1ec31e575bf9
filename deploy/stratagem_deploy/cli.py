"""The `stratagem` command.

What a subcommand needs is loaded by it, so that `--help` need not wait for PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stratagem_deploy.checkpoints import cli as checkpoints
from stratagem_deploy.watching import cli as watching
from stratagem_proto.errors import StratagemError

# What follows a script, and all that a server is given, is theirs even where it looks
# like options.
_SCRIPTS_OWN = {"allow_interspersed_args": False}
_SERVERS_OWN = {"ignore_unknown_options": True, "allow_extra_args": True}

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Parameter servers and workers for PyTorch.",
)
app.add_typer(checkpoints.app, name="checkpoint")
for watch in (watching.status, watching.top, watching.variables):
    app.command()(watch)


@app.command(context_settings=_SCRIPTS_OWN)
def run(  # noqa: PLR0913  # one parameter for each option
    script: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="The training script.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Its arguments.", metavar="ARGS")
    ] = None,
    ps: Annotated[
        int, typer.Option(min=0, help="Number of servers; workers may do without.")
    ] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Number of workers.")] = 1,
    grace: Annotated[
        float,
        typer.Option(min=0, help="Seconds to end in, after a failure or Ctrl-C."),
    ] = 10.0,
    restore: Annotated[
        Path | None,
        typer.Option(
            help="Folder of checkpoints; servers begin with the latest, if there is "
            "one.",
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show all that servers log.")
    ] = False,
) -> None:
    """Run a script on local parameter servers and workers.

    The script runs once per worker, with TF_CONFIG and STRATAGEM_TOKEN_FILE set.
    Worker 0 is the chief, and its output is this command's output. What the others
    write goes to standard error, each line behind the name of its process.
    OMP_NUM_THREADS, unless set, shares the cores out among the workers.

    With --restore and a folder that the script saves to, a script that is run again
    goes on with the values of the last checkpoint and with their optimizers' state.

    Exit code: 0 when the script succeeded on every worker, else that of the worker
    which failed first, 128 + N if signal N ended it; 1 if a server failed.
    """
    from stratagem_deploy.script_run import ScriptRun, ScriptSettings

    if restore and not ps:
        raise typer.BadParameter("without servers nothing is restored")

    settings = ScriptSettings(
        command=(str(script), *(arguments or ())),
        ps=ps,
        workers=workers,
        grace=grace,
        verbose=verbose,
        restore=str(restore.absolute()) if restore else "",
    )
    try:
        code = ScriptRun(settings).exit_code()
    except StratagemError as error:
        typer.echo(f"stratagem: {error}", err=True)
        raise typer.Exit(1) from error
    raise typer.Exit(code)


@app.command(
    "ps",
    context_settings={**_SERVERS_OWN, **_SCRIPTS_OWN},
    add_help_option=False,
    help="Run one parameter server; see `stratagem ps --help`.",
)
def serve_variables(context: typer.Context) -> None:
    from stratagem_psserver import process

    process.tune()
    from stratagem_psserver.cli import app as server

    server(args=context.args, prog_name="stratagem ps")


@app.command(
    "worker",
    context_settings={**_SERVERS_OWN, **_SCRIPTS_OWN},
    add_help_option=False,
    help="Run one worker server; see `stratagem worker --help`.",
)
def serve_functions(context: typer.Context) -> None:
    from stratagem_worker.cli import app as server

    server(args=context.args, prog_name="stratagem worker")


@app.command()
def health(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Where health checks are served.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer as JSON.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds to wait for the answer.")
    ] = 5.0,
) -> None:
    """Ask a server how it is.

    Exit code: 0 if it serves, 1 if it does not, for instance while it drains, and 2
    if it cannot be reached.
    """
    from stratagem_deploy.health import check_health

    report = check_health(address, timeout)
    typer.echo(report.to_json() if as_json else str(report))
    raise typer.Exit(report.health)


def main() -> None:
    """Entry point of the `stratagem` command."""
    app()


if __name__ == "__main__":
    main()
