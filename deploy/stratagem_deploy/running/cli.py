"""The command `stratagem run`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, ClassVar

import typer
from pydantic import Field

from stratagem_deploy.clusters.replication import check_servers
from stratagem_deploy.clusters.storage import Storage, storage
from stratagem_deploy.output.display import Display
from stratagem_deploy.output.json_lines import JsonLines
from stratagem_deploy.output.screen import Screen
from stratagem_deploy.running.run import ScriptRun
from stratagem_deploy.running.settings import ScriptSettings
from stratagem_proto.certificates.presented import VARIABLE as CERTIFICATES
from stratagem_proto.configuration.commands import command
from stratagem_proto.configuration.model import ProcessSettings
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    StratagemError,
)
from stratagem_proto.notices import notice_at
from stratagem_psserver.settings import MOST_REPLICAS, Durability

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

Script = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The training script.")]
Arguments = Annotated[list[str] | None, typer.Argument(help="Its arguments.", metavar="ARGS")]
Tls = Annotated[
    bool,
    typer.Option(help="Know processes by certificates made for the run, and encrypt all."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print each line of all processes as JSON.")]


class RunCommandOptions(ProcessSettings):
    """Settings of `stratagem run`."""

    kind: ClassVar[str] = "run"

    ps: int = Field(1, ge=0, description="Number of servers; 0 for workers without servers.")
    workers: int = Field(1, ge=1, description="Number of workers.")
    grace: float = Field(
        10.0, ge=0, description="Seconds that processes get to end after a failure or Ctrl-C."
    )
    notice: str = Field(
        "",
        description="Where it will stand that the run is to end, as by SIGTERM: file:PATH, once "
        "there is such a file; or kubernetes:NAMESPACE/POD, once that pod is to be deleted.",
    )
    max_restarts: int = Field(
        0,
        ge=0,
        description="How often failed workers are restarted, and servers that have a log, in the "
        "whole run.",
    )
    restore: Path | None = Field(
        None,
        description="Folder or URL of checkpoints; servers start from the latest, if there is one.",
    )
    replicas: int = Field(
        1,
        ge=1,
        le=MOST_REPLICAS,
        description="Processes with the state of each server: 2 for a primary and a backup.",
    )
    movable: bool = Field(
        False,
        description="Let tasks move between servers while the script runs, by `stratagem servers`.",
    )
    coordinators: int = Field(
        0,
        ge=0,
        description="Processes that run the script to coordinate the workers, which then are "
        "servers: 2 for one and another one that stands by; 0 to run it on each worker.",
    )
    durability: Durability = Field(
        "none",
        description="What the end of a server may lose: all since the last checkpoint (none) or "
        "image (snapshot), or nothing that was acknowledged (log).",
    )
    durability_folder: Path | None = Field(
        None,
        description="Folder on a disk for what --durability keeps, a subfolder for each server.",
    )
    policy: Path | None = Field(
        None, description="File that says which tasks and roles may do what to which variables."
    )
    full_tracebacks: bool = Field(
        False, description="Print all frames of tracebacks, including those of libraries."
    )
    verbose: bool = Field(
        False,
        description="Show how to watch the servers, and everything that they log.",
        json_schema_extra={"short": ["-v"]},
    )


def run(
    options: RunCommandOptions,
    script: Script,
    arguments: Arguments = None,
    as_json: AsJson = False,
    tls: Tls = False,
) -> None:
    """Run a script on local parameter servers and workers.

    The script runs once per worker, with TF_CONFIG and STRATAGEM_TOKEN_FILE set. Worker 0 is the
    chief, and its output is this command's output. The output of other processes goes to standard
    error, each line after the name of its process. Unless OMP_NUM_THREADS is set, the workers share
    the cores evenly; unless OMP_WAIT_POLICY is set, their threads do not spin on cores while they
    wait. Unless PYTHONHASHSEED is set, it is 0, so that sets have one order in all workers.

    Arguments after the script belong to the script. If one of them is an option that this command
    has too, put `--` between the script and its arguments.

    With --json this command prints a line of JSON for each line of a process: its task, its stream
    and the line. The first line has the addresses of the servers: cluster and token_file. The last
    line says how the run ended: exit_code, failed (the task that failed first), problem and
    seconds.

    With --restore and a folder that the script saves to, a script that is run again goes on with
    the values of the last checkpoint and with their optimizers' state.

    With --max-restarts N workers that fail are restarted, up to N times in the whole run, after
    half a second at first and twice as long each time, at most 30 s. The others go on meanwhile.
    Servers keep the variables: the script of a restarted worker begins at its first line and goes
    on with their values. Exit code 2 stands for invalid arguments, and is final. So is the end of a
    server without a log, since its variables are lost with it: run again, with --restore.

    With --durability log and a folder, servers keep a log of all changes. A server that ends is
    restarted like a worker, and goes on where it was.

    With --replicas 2, each server has a primary and a backup, which takes over within about a
    second when the primary ends. Either of them is started again whenever it ends, whatever
    --max-restarts says, and comes back as the backup. The run ends when both have ended at once.

    With --movable, `stratagem servers` moves tasks between the servers in another shell, and
    `stratagem servers add` starts one more. A server that ends gives its tasks to the others before
    if it can. One that has none is started again, whatever --max-restarts says, and takes tasks
    when it is added.

    With --coordinators 1, workers are worker servers, and the script runs once, as the program
    that coordinates them. With --coordinators 2 another process stands by, and runs the script when
    nothing is heard of the first any more, within about two seconds of its end. One that is killed
    is started again, whatever --max-restarts says, and stands by. When the script has succeeded in
    one of them, the run ends.

    SIGTERM, or the notice that --notice names, is passed on to the script, which has --grace
    seconds to end. A script that asks for it (stratagem.Notice) finishes its step before.

    With --policy, servers refuse what the file does not let a task do. Worker 0 is the chief.

    With --tls, each process gets a certificate, by which servers know who calls and clients know
    whom they reach.

    If a script that imports stratagem ends with a traceback, frames of Stratagem, PyTorch and gRPC
    are folded into one line, unless --full-tracebacks is given.

    Exit code: 0 when the script succeeded on every worker, else that of the worker which failed
    first, 128 + N if signal N ended it; 1 if a server failed.
    """
    _check_together(options)
    try:
        folders = _checked_storage(options)
        notice = notice_at(options.notice) if options.notice else None
    except (InvalidArgumentError, FailedPreconditionError) as error:
        raise typer.BadParameter(error.message) from error
    settings = ScriptSettings(
        command=(str(script), *_of_script(arguments or [])),
        ps=options.ps,
        workers=options.workers,
        grace=options.grace,
        verbose=options.verbose,
        max_restarts=options.max_restarts,
        full_tracebacks=options.full_tracebacks,
        storage=folders,
        replicas=options.replicas,
        movable=options.movable,
        coordinators=options.coordinators,
        notice=notice,
        tls=tls,
        config=os.path.abspath(options.config) if options.config else "",
    )
    display: Display = Screen(sys.stderr, options.verbose)
    if as_json:
        display = JsonLines(sys.stdout)
    raise typer.Exit(_shown(settings, display))


def _check_together(options: RunCommandOptions) -> None:
    """Check that options go together, and with the environment.

    Raises:
        BadParameter: They do not.
    """
    if options.restore and not options.ps:
        raise typer.BadParameter("--restore needs servers: give --ps a number above 0")
    if options.policy and not options.ps:
        raise typer.BadParameter("--policy needs servers: give --ps a number above 0")
    if options.max_restarts and not options.ps:
        raise typer.BadParameter(
            "--max-restarts needs servers: without them the workers form one group, "
            "which none of them can join again. `torchrun --max-restarts` restarts all"
        )
    if options.coordinators and not options.ps:
        raise typer.BadParameter(
            "--coordinators needs servers, where the variables are and what functions have read: "
            "give --ps a number above 0"
        )
    if os.environ.get(CERTIFICATES):
        raise typer.BadParameter(
            f"{CERTIFICATES} names the certificates of one task, and this command starts several; "
            "unset it, and give --tls for certificates that are made for the run"
        )


def _checked_storage(options: RunCommandOptions) -> Storage:
    """Return the files and folders of the servers.

    Raises:
        InvalidArgumentError: They do not go together, or not with the other options.
        FailedPreconditionError: Another number of servers wrote the checkpoint.
    """
    folders = storage(
        options.restore, options.durability, options.durability_folder, options.policy
    )
    check_servers(options.ps, folders, options.replicas, options.movable)
    return folders


def _of_script(arguments: list[str]) -> list[str]:
    """Return the arguments for the script.

    Raises:
        BadParameter: One of them is also an option of this command, which may have been meant.
    """
    if arguments[:1] == ["--"]:
        return arguments[1:]
    mine = _own_options()
    for argument in arguments:
        if argument.partition("=")[0] in mine:
            raise typer.BadParameter(
                f"{argument} comes after the script. Put it before the script if it "
                "is for `stratagem run`; if it is for the script, put `--` before it"
            )
    return arguments


def _own_options() -> set[str]:
    """Return the options of this command as they are written, without --help."""
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


# All arguments after the script are for the script, even if they look like options.
app.command(context_settings={"allow_interspersed_args": False})(
    command("stratagem run", RunCommandOptions, run)
)
