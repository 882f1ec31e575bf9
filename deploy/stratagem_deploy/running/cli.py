"""The command `stratagem run`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from stratagem_deploy.clusters.plan import Storage, check_servers
from stratagem_deploy.output import Display, JsonLines, Screen
from stratagem_deploy.running.run import RunOptions, ScriptRun, ScriptSettings
from stratagem_proto.configuration.commands import command
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    StratagemError,
)
from stratagem_rpc.certificates.presented import TLS_VARIABLE
from stratagem_rpc.notices import notice_at

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

Script = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The training script.")]
Arguments = Annotated[list[str] | None, typer.Argument(help="Its arguments.", metavar="ARGS")]
Tls = Annotated[
    bool,
    typer.Option(help="Know processes by certificates made for the run, and encrypt all."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print each line of all processes as JSON.")]


def run(
    options: RunOptions,
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

    With --table-bytes, rows of tables that are rarely used are in files on a local disk.

    With --replicas 2, each server has a primary and a backup, which takes over within about a
    second when the primary ends. Either of them is started again whenever it ends, whatever
    --max-restarts says, and comes back as the backup. The run ends when both have ended at once.

    With --movable, `stratagem servers` moves tasks between the servers in another shell, and
    `stratagem servers add` starts one more, which gets its share of the tasks if there are more of
    them than servers (--tasks). A server that ends gives its tasks to the others before
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
        folders = Storage.at(
            options.restore,
            options.durability,
            options.durability_folder,
            options.policy,
            options.table_bytes,
            options.table_folder,
        )
        check_servers(options.ps, folders, options.replicas, options.movable, options.tasks)
        notice = notice_at(options.notice) if options.notice else None
    except (InvalidArgumentError, FailedPreconditionError) as error:
        raise typer.BadParameter(error.message) from error
    settings = ScriptSettings(
        (str(script), *_of_script(arguments or [])), options, folders, notice, tls
    )
    display: Display = Screen(sys.stderr, options.verbose)
    if as_json:
        display = JsonLines(sys.stdout)
    code, problem = 1, ""
    try:
        code = ScriptRun(settings, display).exit_code()
    except StratagemError as error:
        problem = str(error)
    display.ended(code, problem)
    raise typer.Exit(code)


def _check_together(options: RunOptions) -> None:
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
    if os.environ.get(TLS_VARIABLE):
        raise typer.BadParameter(
            f"{TLS_VARIABLE} names the certificates of one task, and this command starts several; "
            "unset it, and give --tls for certificates that are made for the run"
        )


def _of_script(arguments: list[str]) -> list[str]:
    """Return the arguments for the script.

    Raises:
        BadParameter: One of them is also an option of this command, which may have been meant.
    """
    if arguments[:1] == ["--"]:
        return arguments[1:]
    options = typer.main.get_command(app).params
    names = {name for one in options for name in (*one.opts, *one.secondary_opts)}
    mine = {name for name in names if name.startswith("-")} - {"--help"}
    for argument in arguments:
        if argument.partition("=")[0] in mine:
            raise typer.BadParameter(
                f"{argument} comes after the script. Put it before the script if it "
                "is for `stratagem run`; if it is for the script, put `--` before it"
            )
    return arguments


# All arguments after the script are for the script, even if they look like options.
app.command(context_settings={"allow_interspersed_args": False})(
    command("stratagem run", RunOptions, run)
)
