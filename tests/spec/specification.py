"""The rows of the specification, and what makes each true."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.tables import read_tables

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """A row of the specification.

    Attributes:
        id: Its prefix and number, such as "CTX-10".
        title: What it says, in short.
        targets: Dotted paths of what makes it true.
        comes_with_clusters: Whether it is about several processes.
        reason: Why it means nothing here, if it does not.
        see: The row that says the same, whose tests are its tests.
    """

    id: str
    title: str = ""
    targets: tuple[str, ...] = ()
    comes_with_clusters: bool = False
    reason: str | None = None
    see: str | None = None

    @property
    def prefix(self) -> str:
        return self.id.partition("-")[0]

    @property
    def needs_a_test(self) -> bool:
        return not (self.comes_with_clusters or self.reason or self.see)


@cache
def rows() -> Mapping[str, Row]:
    """Return all rows by id, in the order of the files."""
    reasons = read_tables(FOLDER / "not_applicable.toml")
    found: dict[str, Row] = {}
    for path in sorted((FOLDER / "rows").glob("*.toml")):
        for key, table in read_tables(path).items():
            found[key] = _row(key, table, reasons.get(key, {}).get("reason"))
    return found


def _row(key: str, table: Mapping[str, Any], reason: str | None) -> Row:
    target = table.get("target", ())
    return Row(
        key,
        table["title"],
        (target,) if isinstance(target, str) else tuple(target),
        table.get("scope") == "clusters",
        reason,
        table.get("see"),
    )
