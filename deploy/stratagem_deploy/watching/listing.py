"""The variables of all servers, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Table

from stratagem_deploy.watching.amounts import amount
from stratagem_deploy.watching.asking import ServerAnswer, of_clients
from stratagem_deploy.watching.facts import plain
from stratagem_proto.v1.status_pb2 import VariableStatus
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_SLOT

_COLUMNS = ("name", "place", "dtype", "shape", "bytes", "rows", "version", "slots")


def variables_of(answers: Iterable[ServerAnswer]) -> list[dict[str, Any]]:
    """Return all variables, each with the names of its slot variables.

    Bytes of a table are those of its index and of its optimizers' state, too; "rows" says how many
    it has stored, and is None for others.
    """
    return [fact for answer in of_clients(answers) for fact in _of_server(answer)]


def _of_server(answer: ServerAnswer) -> list[dict[str, Any]]:
    owners: dict[str, dict[str, Any]] = {}
    for one in answer.status.parameter_server.variables if answer.status else ():
        spec, nbytes = one.variable.spec, one.bytes
        if spec.kind == VARIABLE_KIND_SLOT and spec.slot_of in owners:
            slots = owners[spec.slot_of]["slots"]
            slots.append({"name": spec.name, "bytes": nbytes})
            continue
        owners[spec.name] = _facts(one, answer.label)
    return list(owners.values())


def _facts(one: VariableStatus, place: str) -> dict[str, Any]:
    variable, described = one.variable, plain(one.variable.spec)
    return {
        "name": variable.spec.name,
        "place": place,
        "kind": described["kind"],
        "dtype": described["tensor"]["dtype"],
        "shape": described["tensor"]["shape"],
        "bytes": one.bytes,
        "rows": variable.table.rows if variable.HasField("table") else None,
        "version": variable.version,
        "slots": [],
    }


def listing(variables: Iterable[dict[str, Any]]) -> Table:
    """Return the same as a table."""
    table = Table(*_COLUMNS, box=box.SIMPLE_HEAD)
    for facts in variables:
        table.add_row(*in_words(facts).values())
    return table


def in_words(facts: dict[str, Any]) -> dict[str, str]:
    """Return what is shown of a variable, column by column."""
    slots, beginning = facts["slots"], f"{facts['name']}/"
    names = ", ".join(slot["name"].removeprefix(beginning) for slot in slots)
    shown = facts | {"bytes": amount(facts["bytes"]), "slots": names}
    return {column: "" if shown[column] is None else str(shown[column]) for column in _COLUMNS}
