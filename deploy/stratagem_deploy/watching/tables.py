"""What servers say, as tables on a terminal and as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, fields
from typing import Any, NoReturn

from google.protobuf.message import Message
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from stratagem_deploy.watching import rows
from stratagem_deploy.watching.asking import ServerAnswer, amount, of_clients
from stratagem_deploy.watching.clients import Finding
from stratagem_deploy.watching.looks import Look
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_SLOT

# Of the fields of rows whose names are no headings, and of those that are by the second where there
# was an earlier look.
_HEADINGS = {"own_time": "own time for a step", "within": "99 % within", "gone": ""}
_RATES = ("steps", "calls", "received", "sent")
_VARIABLE_COLUMNS = ("name", "place", "dtype", "shape", "bytes", "rows", "version", "slots")


def facts_of(answers: Iterable[ServerAnswer]) -> dict[str, Any]:
    """Return all that servers answered, for JSON; those that did not have "problem" instead."""
    servers = []
    for answer in answers:
        facts = {"server": answer.label, "address": answer.place.address}
        said = {"problem": answer.problem} if answer.status is None else plain(answer.status)
        servers.append({**facts, "answers": answer.status is not None, **said})
    return {"servers": servers}


def plain(message: Message) -> dict[str, Any]:
    """Return the fields of a message by name.

    Bytes are hexadecimal and enums their values' own names in lower case; what may be absent, and
    is, is left out.
    """
    fields = message.DESCRIPTOR.fields
    return {
        field.name: _plain_field(field, getattr(message, field.name))
        for field in fields
        if not field.has_presence or message.HasField(field.name)
    }


def _plain_field(field: Any, value: Any) -> Any:
    kind, enum = field.message_type, field.enum_type
    if kind is not None and kind.GetOptions().map_entry:
        return {str(key): value[key] for key in sorted(value)}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plain_field(field, item) for item in value]
    if isinstance(value, Message):
        return plain(value)
    if isinstance(value, bytes):
        return value.hex()
    if enum is None:
        return value
    # Without what all names of the enum begin with.
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    known = enum.values_by_number.get(value)
    return known.name.removeprefix(prefix).lower() if known else str(value)


def variables_of(answers: Iterable[ServerAnswer]) -> list[dict[str, Any]]:
    """Return all variables, each with the names of its slot variables.

    Bytes of a table are those of its index and of its optimizers' state, too; "rows" says how many
    it has stored, and is None for others.
    """
    found: list[dict[str, Any]] = []
    for answer in of_clients(answers):
        owners: dict[str, dict[str, Any]] = {}
        for one in answer.status.parameter_server.variables if answer.status else ():
            variable, spec = one.variable, one.variable.spec
            if spec.kind == VARIABLE_KIND_SLOT and spec.slot_of in owners:
                slots = owners[spec.slot_of]["slots"]
                slots.append({"name": spec.name, "bytes": one.bytes})
                continue
            described = plain(spec)
            owners[spec.name] = {
                "name": spec.name,
                "place": answer.label,
                "kind": described["kind"],
                "dtype": described["tensor"]["dtype"],
                "shape": described["tensor"]["shape"],
                "bytes": one.bytes,
                "rows": variable.table.rows if variable.HasField("table") else None,
                "version": variable.version,
                "slots": [],
            }
        found += owners.values()
    return found


def variables_table(variables: Iterable[dict[str, Any]]) -> Table:
    """Return the same as a table."""
    table = Table(*_VARIABLE_COLUMNS, box=box.SIMPLE_HEAD)
    for facts in variables:
        table.add_row(*in_words(facts).values())
    return table


def in_words(facts: dict[str, Any]) -> dict[str, str]:
    """Return what is shown of a variable, column by column."""
    slots, beginning = facts["slots"], f"{facts['name']}/"
    names = ", ".join(slot["name"].removeprefix(beginning) for slot in slots)
    shown = facts | {"bytes": amount(facts["bytes"]), "slots": names}
    return {
        column: "" if shown[column] is None else str(shown[column]) for column in _VARIABLE_COLUMNS
    }


def tables(
    answers: Sequence[ServerAnswer], earlier: Sequence[ServerAnswer] = ()
) -> Iterator[Table]:
    """Yield what there is to show of servers, their clients and their calls.

    Args:
        answers: What they say now.
        earlier: What they said before. If given, steps and calls are those since then, by the
            second.
    """
    servers = _table("Servers", *headings(rows.ServerRow)[:-1])
    for *shown, doing, problem in map(astuple, rows.server_rows(answers)):
        servers.add_row(*shown, f"[red]{escape(problem)}[/red]" if problem else doing)
    if sentences := [each for each in (rows.exposure(answers), rows.mixture(answers)) if each]:
        servers.caption, servers.caption_justify = "\n".join(sentences), "left"
    yield servers

    called, before = of_clients(answers), of_clients(earlier)
    every: Sequence[tuple[str, type[Any], Iterable[Any]]] = (
        ("Clients", rows.ClientRow, rows.client_rows(called)),
        ("Waits", rows.WaitRow, rows.wait_rows(called)),
        ("Steps", rows.StepRow, rows.step_rows(called, before)),
        ("Calls", rows.CallRow, rows.call_rows(answers, earlier)),
    )
    for title, kind, lines in every:
        table = _table(title, *headings(kind, "/s" if earlier else ""))
        for each in lines:
            table.add_row(*astuple(each))
        if table.row_count:
            yield table


def headings(kind: type[Any], unit: str = "") -> list[str]:
    """Return what stands above the fields of a row, for instance "steps" or "steps/s"."""
    return [
        _HEADINGS.get(one.name, one.name.replace("_", " ")) + unit * (one.name in _RATES)
        for one in fields(kind)
    ]


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


def show(look: Look, interval: float, console: Console, heading: str = "") -> NoReturn:
    """Show what servers say on a terminal, until interrupted.

    Args:
        look: Asks them.
        interval: Seconds between two looks.
        console: The terminal.
        heading: Which cluster it is, or "".
    """
    earlier: Sequence[ServerAnswer] = ()
    above = [Text(heading)] if heading else []
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def update() -> None:
            nonlocal earlier
            answers = look()
            live.update(Group(*above, *tables(answers, earlier)), refresh=True)
            earlier = answers

        repeat(update, interval)


def repeat(work: Callable[[], None], interval: float) -> NoReturn:
    """Do something every so many seconds, until interrupted."""
    while True:
        work()
        time.sleep(interval)
