"""Every member and every row has a test, or an excuse."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.spec.coverage import TABLE, carriers, differences, members, text
from tests.spec.markers import markers
from tests.spec.specification import FOLDER, rows
from tests.spec.taking_away import owner_of
from tests.spec.without_rows import ids_of
from tests.tables import read_tables

MOST_NOT_APPLICABLE = 60


def test_sentences_that_differ_are_of_members_and_say_why() -> None:
    known = {(member.page, member.name) for member in members()}
    assert sorted(differences().keys() - known) == []
    for sentences in differences().values():
        for sentence in sentences:
            assert sentence.keys() == {"says", "here"}
            assert all(sentence.values())


def test_every_row_is_listed() -> None:
    sections = read_tables(FOLDER / "sections.toml")
    expected = {prefix: section["rows"] for prefix, section in sections.items()}
    assert Counter(row.prefix for row in rows().values()) == expected


def test_every_row_has_a_test() -> None:
    needed = {row.id for row in rows().values() if row.needs_a_test}
    assert sorted(needed - markers().keys()) == []


def test_every_row_with_a_test_has_a_target() -> None:
    tested = [row for key, row in rows().items() if key in markers()]
    assert [row.id for row in tested if not row.targets] == []


def test_tests_carry_known_rows() -> None:
    assert sorted(markers().keys() - rows().keys()) == []


def test_rows_refer_to_other_rows_that_are_tested_or_excused() -> None:
    referred = {row.see for row in rows().values() if row.see}
    assert sorted(referred - rows().keys()) == []
    assert [key for key in referred if rows()[key].see] == []


def test_every_target_exists() -> None:
    for row in rows().values():
        for target in row.targets:
            owner_of(target)


def test_few_rows_mean_nothing_here() -> None:
    excused = read_tables(FOLDER / "not_applicable.toml").keys()
    assert len(excused) <= MOST_NOT_APPLICABLE
    assert sorted(excused - rows().keys()) == []


def test_a_row_is_excused_or_tested_but_not_both() -> None:
    excused = {row.id for row in rows().values() if row.reason or row.see}
    assert sorted(excused & markers().keys()) == []


def test_every_member_stands_for_something_that_is_tested() -> None:
    for member in members():
        if not member.comes_with_clusters:
            owner_of(member.ours)
            assert carriers(member.rows), member


def test_every_collected_marker_is_read_from_the_source(
    request: pytest.FixtureRequest,
) -> None:
    collected = {key for item in request.session.items for key in ids_of(item)}
    assert sorted(collected - markers().keys()) == []


def test_the_table_is_up_to_date() -> None:
    assert TABLE.read_text(encoding="utf-8") == text(), "run `make coverage-table`"
