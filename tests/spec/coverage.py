"""Write docs/api-coverage.md: `make coverage-table`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.spec.markers import markers
from tests.spec.specification import FOLDER, Row, rows
from tests.tables import read_tables

TABLE = FOLDER.parent.parent / "docs" / "api-coverage.md"

WITH_CLUSTERS = "comes with clusters"

INTRODUCTION = """\
# What is covered

Stratagem has the API of `tf.distribute`. This page lists the members of five pages of
its reference, of several versions, and the rows of the specification that they follow,
each with the tests that show it, and the sentences of those pages that do not hold
here as they are written, with the reason. `make coverage-table` writes it;
[tests/spec](../tests/spec/README.md) says how tests carry rows.
"""


@dataclass(frozen=True)
class Member:
    """A member of a page of the reference.

    Attributes:
        page: The title of the page.
        name: Its name there.
        ours: Dotted path of what stands for it here.
        rows: The ids of the rows that say how it behaves.
    """

    page: str
    name: str
    ours: str
    rows: Sequence[str]

    @property
    def comes_with_clusters(self) -> bool:
        return all(rows()[key].comes_with_clusters for key in self.rows)


@cache
def differences() -> dict[tuple[str, str], Sequence[Mapping[str, str]]]:
    """Return the sentences that do not hold here, by page and member."""
    return {
        (page, name): sentences
        for page, entries in read_tables(FOLDER / "sentences.toml").items()
        for name, sentences in entries.items()
    }


@cache
def members() -> Sequence[Member]:
    """Return the members of all pages, in their order."""
    return [
        Member(page, name, entry["ours"], entry["rows"])
        for page, entries in read_tables(FOLDER / "members.toml").items()
        for name, entry in entries.items()
    ]


def carriers(ids: Iterable[str]) -> list[str]:
    """Return the files with tests that carry one of some rows."""
    known = [rows()[key].see or key for key in ids]
    return sorted({file for key in known for file in markers().get(key, ())})


def text() -> str:
    """Return the page."""
    return "\n".join([INTRODUCTION, *_pages(), *_sections()])


def _pages() -> Iterator[str]:
    yield "## Pages of the reference\n"
    for page in dict.fromkeys(member.page for member in members()):
        yield f"### {page}\n"
        yield "| Member | Here | Sentences that differ | Rows | Tests |"
        yield "| --- | --- | --- | --- | --- |"
        yield from (_member(each) for each in members() if each.page == page)
        yield ""


def _member(member: Member) -> str:
    tests = _links(carriers(member.rows)) or WITH_CLUSTERS
    differ = "; ".join(map(_difference, differences().get((member.page, member.name), ())))
    names = f"`{member.name}`", f"`{member.ours}`"
    cells = *names, differ, ", ".join(member.rows), tests
    return f"| {' | '.join(cells)} |"


def _difference(sentence: Mapping[str, str]) -> str:
    return f"“{sentence['says']}”: {sentence['here']}"


def _sections() -> Iterator[str]:
    yield "## Rows of the specification\n"
    for prefix, section in read_tables(FOLDER / "sections.toml").items():
        yield f"### {section['title']}\n"
        yield "| Row | What it says | Tests |\n| --- | --- | --- |"
        group = (row for row in rows().values() if row.prefix == prefix)
        yield from (_row(row) for row in sorted(group, key=_order))
        yield ""


def _row(row: Row) -> str:
    return f"| {row.id} | {row.title} | {_links(carriers([row.id])) or _excuse(row)} |"


def _excuse(row: Row) -> str:
    if row.comes_with_clusters:
        return WITH_CLUSTERS
    return f"not applicable: {row.reason}" if row.reason else f"see {row.see}"


def _order(row: Row) -> tuple[str, int, str]:
    """Sort CTX-2 before CTX-10, CTX-A1 after both, INP-30 before INP-30b."""
    number = row.id.partition("-")[2]
    letter = number.rstrip("0123456789") if number[0].isalpha() else ""
    digits = number.removeprefix(letter).rstrip("abcdefghijklmnopqrstuvwxyz")
    return letter, int(digits), number


def _links(files: Iterable[str]) -> str:
    return ", ".join(f"[{Path(file).stem}](../tests/{file})" for file in files)


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
