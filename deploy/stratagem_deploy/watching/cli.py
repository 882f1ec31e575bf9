"""The commands `stratagem status`, `top`, `variables` and `doctor`.

Exit codes: 0 when all servers answered, 1 when one did not, and 2 when there was nobody to ask.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from stratagem_deploy.watching.looks import (
    AsJson,
    Cluster,
    Interval,
    Patience,
    Run,
    Servers,
    Timeout,
    TokenFile,
    found_cluster,
    look_at,
)

if TYPE_CHECKING:
    from stratagem_deploy.watching.asking import ServerAnswer

_MISSED = 1


def status(
    servers: Servers = None,
    cluster: Cluster = None,
    token_file: TokenFile = None,
    run: Run = None,
    as_json: AsJson = False,
    timeout: Timeout = 5.0,
) -> None:
    """Tell what the servers of a cluster are doing.

    Without HOST:PORT, this command asks all tasks of the job ps in TF_CONFIG, and those of the job
    worker that serve. Workers that run the program themselves are shown as clients. Without
    TF_CONFIG, it asks the servers of the current `stratagem run` on this machine, with its secret;
    if there are several runs, --run chooses one.

    Exit code: 0 if all servers answered, 1 if one did not, and 2 if there was nobody to ask.
    """
    found = found_cluster(servers, cluster, run)
    answers = look_at(found, token_file, timeout)()
    if as_json:
        _print_json(answers)
    else:
        _print_tables(answers)
    _exit(answers)


def top(  # noqa: PLR0913  # one parameter for each option
    servers: Servers = None,
    cluster: Cluster = None,
    token_file: TokenFile = None,
    run: Run = None,
    interval: Interval = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look twice, print the result, and end.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each look.")
    ] = False,
    timeout: Timeout = 5.0,
) -> None:
    """Watch the servers of a cluster until Ctrl-C: who trains how fast.

    Servers are found as by `stratagem status`. Steps and calls are counted between two looks. If
    the output is not a terminal, --once is the default, except with --json.

    Exit code: 0, also after Ctrl-C; with --once 1 if a server did not answer; 2 if there was nobody
    to ask.
    """
    from rich.console import Console

    from stratagem_deploy.watching.tables import repeat, show

    found, console = found_cluster(servers, cluster, run), Console()
    look = look_at(found, token_file, timeout)
    with suppress(KeyboardInterrupt):
        if once or not (as_json or console.is_terminal):
            earlier = look()
            time.sleep(interval)
            answers = look()
            if as_json:
                _print_json(answers)
            else:
                _print_tables(answers, earlier)
            _exit(answers)
        if as_json:
            repeat(lambda: _print_json(look()), interval)
        show(look, interval, console, found.heading)


def variables(
    servers: Servers = None,
    cluster: Cluster = None,
    token_file: TokenFile = None,
    run: Run = None,
    as_json: AsJson = False,
    timeout: Timeout = 5.0,
) -> None:
    """List the variables of a cluster: where they are, how large, how often changed.

    Servers are found as by `stratagem status`.

    Exit code: 0 if all servers answered, 1 if one did not, and 2 if there was nobody to ask.
    """
    from stratagem_deploy.output import table_console
    from stratagem_deploy.watching.tables import variables_of, variables_table

    found = found_cluster(servers, cluster, run)
    answers = look_at(found, token_file, timeout, with_variables=True)()
    listed = variables_of(answers)
    if as_json:
        typer.echo(json.dumps({"variables": listed}))
    else:
        table_console().print(variables_table(listed))
    _exit(answers)


def doctor(  # noqa: PLR0913  # one parameter for each option
    servers: Servers = None,
    cluster: Cluster = None,
    token_file: TokenFile = None,
    run: Run = None,
    patience: Patience = 2.0,
    as_json: AsJson = False,
    timeout: Timeout = 5.0,
) -> None:
    """Say what is wrong with a cluster, who is to blame, and what to do.

    Servers are found as by `stratagem status`. What holds others up comes first.

    Exit code: 0 if nothing was found, 1 if something was, and 2 if there was nobody to ask.
    """
    from stratagem_deploy.output import table_console
    from stratagem_deploy.watching.doctor import findings
    from stratagem_deploy.watching.tables import findings_table

    answers = look_at(found_cluster(servers, cluster, run), token_file, timeout)()
    found = findings(answers, patience)
    if as_json:
        typer.echo(json.dumps({"findings": [finding.facts() for finding in found]}))
    elif found:
        table_console().print(findings_table(found))
    elif any(answer.status is not None and answer.status.sessions for answer in answers):
        typer.echo("nothing is wrong, as far as servers can tell")
    else:
        typer.echo(
            "servers are well, but no client is connected to them, so that nothing can be told of "
            "programs: start one by `stratagem run`, or with the servers' addresses in TF_CONFIG"
        )
    raise typer.Exit(_MISSED if found else 0)


def _print_json(answers: Sequence[ServerAnswer]) -> None:
    from stratagem_deploy.watching.tables import facts_of

    typer.echo(json.dumps(facts_of(answers)))


def _print_tables(answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer] = ()) -> None:
    from stratagem_deploy.output import table_console
    from stratagem_deploy.watching.tables import tables

    table_console().print(*tables(answers, earlier))


def _exit(answers: Sequence[ServerAnswer]) -> None:
    missed = [answer for answer in answers if answer.is_missed]
    for answer in missed:
        typer.echo(f"stratagem: {answer.problem}", err=True)
    raise typer.Exit(_MISSED if missed else 0)
