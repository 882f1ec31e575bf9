"""The command `stratagem run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, ClassVar

import typer
from pydantic import Field

from stratagem_deploy.output.display import Display
from stratagem_deploy.output.json_lines import JsonLines
from stratagem_deploy.output.screen import Screen
from stratagem_deploy.running.run import ScriptRun, ScriptSettings
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
AsJson = Annotated[
    bool, typer.Option("--json", help="Print each line of all processes as JSON.")
]


class RunCommandOptions(ProcessSettings):
    """Settings of `stratagem run`."""

    kind: ClassVar[str] = "run"

    ps: int = Field(1, ge=0, description="Number of servers; workers may do without.")
    workers: int = Field(1, ge=1, description="Number of workers.")
    grace: float = Field(
        10.0, ge=0, description="Seconds to end in, after a failure or Ctrl-C."
    )
    max_restarts: int = Field(
        0,
        ge=0,
        description="How often workers that fail are started again, all together.",
    )
    restore: Path | None = Field(
        None,
        description="Folder of checkpoints; servers begin with the latest, if there is "
        "one.",
    )
    full_tracebacks: bool = Field(
        False,
        description="Print all frames of tracebacks, those of libraries too.",
    )
    verbose: bool = Field(
        False,
        description="Show how to watch the servers, and all that they log.",
        json_schema_extra={"short": "-v"},
    )


def run(
    options: RunCommandOptions,
    script: Script,
    arguments: Arguments = None,
    as_json: AsJson = False,
) -> None:
    """Run a script on local parameter servers and workers.

    The script runs once per worker, with TF_CONFIG and STRATAGEM_TOKEN_FILE set.
    Worker 0 is the chief, and its output is this command's output. What the others
    write goes to standard error, each line behind the name of its process.
    OMP_NUM_THREADS, unless set, shares the cores out among the workers.

    What stands behind the script is the script's, but for options that this command
    has too: for these, put `--` between the script and its arguments.

    With --json this command's output is a line of JSON for each line of a process:
    its task, its stream and the line. The first one tells where the servers are:
    cluster and token_file. The last one tells how the run ended: exit_code, failed (the
    task that did so first), problem and seconds.

    With --restore and a folder that the script saves to, a script that is run again
    goes on with the values of the last checkpoint and with their optimizers' state.

    With --max-restarts N a worker that fails is started again, up to N times in the
    whole run, after half a second at first and twice as long each time, at most 30 s.
    The others go on meanwhile. Servers keep the variables, so that a worker which is
    started again goes on with them, though its script begins at its first line. Exit
    code 2 is taken for arguments that cannot be, and is final. So is the end of a
    server, as its variables end with it: run again, with --restore.

    A traceback that ends a script which imports stratagem has one line in place of
    frames of Stratagem, PyTorch and gRPC, unless --full-tracebacks is given.

    Exit code: 0 when the script succeeded on every worker, else that of the worker
    which failed first, 128 + N if signal N ended it; 1 if a server failed.
    """
    if options.restore and not options.ps:
        raise typer.BadParameter("without servers nothing is restored")
    if options.max_restarts and not options.ps:
        raise typer.BadParameter(
            "--max-restarts wants servers: without them workers make one group, which "
            "none of them can enter again. `torchrun --max-restarts` starts all again"
        )
    settings = ScriptSettings(
        command=(str(script), *_of_script(arguments or [])),
        ps=options.ps,
        workers=options.workers,
        grace=options.grace,
        verbose=options.verbose,
        max_restarts=options.max_restarts,
        full_tracebacks=options.full_tracebacks,
        restore=str(options.restore.absolute()) if options.restore else "",
    )
    display: Display = Screen(sys.stderr, options.verbose)
    if as_json:
        display = JsonLines(sys.stdout)
    raise typer.Exit(_shown(settings, display))


def _of_script(arguments: list[str]) -> list[str]:
    """Return what the script gets of what stands behind it.

    Raises:
        BadParameter: There is an option of this command, which may be meant for it.
    """
    if arguments[:1] == ["--"]:
        return arguments[1:]
    mine = _own_options()
    for argument in arguments:
        if argument.partition("=")[0] in mine:
            raise typer.BadParameter(
                f"{argument} stands behind the script. Put it before the script if it "
                "is for `stratagem run`; if it is the script's, put `--` behind that"
            )
    return arguments


def _own_options() -> set[str]:
    """Return the options of this command, as they are written; help is everybody's."""
    options = typer.main.get_command(app).params
    names = {name for one in options for name in (*one.opts, *one.secondary_opts)}
    return {name for name in names if name.startswith("-")} - {"--help"}


def _shown(settings: ScriptSettings, display: Display) -> int:
    """Run the script to its end; return its exit code."""
    code, problem = 1, ""
    try:
        code = ScriptRun(settings, display).exit_code()
    except StratagemError as error:
        problem = str(error)
    display.ended(code, problem)
    return code


# What follows a script is the script's, even where it looks like options.
app.command(context_settings={"allow_interspersed_args": False})(
    command("stratagem run", RunCommandOptions, run)
)
