"""What servers say, as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from stratagem_deploy.watching.asking import ServerAnswer, of_clients
from stratagem_deploy.watching.diagnosis.finding import Finding
from stratagem_deploy.watching.rows import (
    call_rows,
    client_rows,
    exposure,
    server_rows,
    step_rows,
    wait_rows,
)


def tables(
    answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer] = ()
) -> Iterator[Table]:
    """Yield what there is to show of servers, their clients and their calls.

    Args:
        answers: What they say now.
        earlier: What they said before. If given, steps and calls are those since then, by the
            second.
    """
    yield _servers(answers)
    called, before = of_clients(answers), of_clients(earlier)
    for table, rows in (
        (_clients(), client_rows(called)),
        (_waits(), wait_rows(called)),
        (_workers("steps/s" if earlier else "steps"), step_rows(called, before)),
        (_methods("/s" if earlier else ""), call_rows(answers, earlier)),
    ):
        if _filled(table, rows).row_count:
            yield table


def _filled(table: Table, rows: Iterable[Any]) -> Table:
    for row in rows:
        table.add_row(*astuple(row))
    return table


def _servers(answers: Sequence[ServerAnswer]) -> Table:
    table = _table("Servers", "server", "address", "up", "clients", "holds", "doing")
    for row in server_rows(answers):
        doing = f"[red]{escape(row.problem)}[/red]" if row.problem else row.doing
        table.add_row(row.server, row.address, row.up, row.clients, row.holds, doing)
    if told := exposure(answers):
        table.caption, table.caption_justify = told, "left"
    return table


def _clients() -> Table:
    return _table("Clients", "client", "role", "last heard of", "servers", "own time for a step")


def _waits() -> Table:
    return _table("Waits", "client", "waits for", "since", "on", "for whom")


def _workers(steps: str) -> Table:
    columns = ("optimizer", "consistency", "worker", steps, "staleness", "dropped")
    return _table("Steps", *columns, "")


def _methods(unit: str) -> Table:
    counts = (f"calls{unit}", "failed", "mean", "99 % within")
    return _table("Calls", "method", *counts, f"received{unit}", f"sent{unit}")


def findings_table(findings: Iterable[Finding]) -> Table:
    """Return what is wrong with a cluster, and what to do, as a table."""
    table = _table("Findings", "", "what", "what to do")
    for number, finding in enumerate(findings, 1):
        what = f"[red]{escape(finding.what)}[/red]" if finding.stalls else escape(finding.what)
        table.add_row(str(number), what, escape(finding.remedy))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column)
    return table
