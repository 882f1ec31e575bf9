"""The command `stratagem run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

import typer
from pydantic import Field

from stratagem_deploy.script_run import ScriptRun, ScriptSettings
from stratagem_proto.configuration.commands import command
from stratagem_proto.configuration.model import ProcessSettings
from stratagem_proto.errors import StratagemError

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

Script = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, help="The training script.")
]
Arguments = Annotated[
    list[str] | None, typer.Argument(help="Its arguments.", metavar="ARGS")
]


class RunOptions(ProcessSettings):
    """Settings of `stratagem run`."""

    kind: ClassVar[str] = "run"

    ps: int = Field(1, ge=0, description="Number of servers; workers may do without.")
    workers: int = Field(1, ge=1, description="Number of workers.")
    grace: float = Field(
        10.0, ge=0, description="Seconds to end in, after a failure or Ctrl-C."
    )
    restore: Path | None = Field(
        None,
        description="Folder of checkpoints; servers begin with the latest, if there is "
        "one.",
    )
    verbose: bool = Field(
        False,
        description="Show all that servers log.",
        json_schema_extra={"short": "-v"},
    )


def run(options: RunOptions, script: Script, arguments: Arguments = None) -> None:
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
    if options.restore and not options.ps:
        raise typer.BadParameter("without servers nothing is restored")
    settings = ScriptSettings(
        command=(str(script), *(arguments or ())),
        ps=options.ps,
        workers=options.workers,
        grace=options.grace,
        verbose=options.verbose,
        restore=str(options.restore.absolute()) if options.restore else "",
    )
    try:
        code = ScriptRun(settings).exit_code()
    except StratagemError as error:
        typer.echo(f"stratagem: {error}", err=True)
        raise typer.Exit(1) from error
    raise typer.Exit(code)


# What follows a script is the script's, even where it looks like options.
app.command(context_settings={"allow_interspersed_args": False})(
    command("stratagem run", RunOptions, run)
)
