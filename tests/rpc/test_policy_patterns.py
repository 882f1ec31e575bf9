"""Patterns of names, compared with what they mean."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem_rpc.serving.policy import NamePattern

SEGMENTS = st.one_of(
    st.just("**"), st.text("ab*", min_size=1, max_size=5).filter(lambda text: "**" not in text)
)
PATTERNS = st.lists(SEGMENTS, min_size=1, max_size=5).map("/".join)
NAMES = st.text("ab/", min_size=1, max_size=12)


def means(pattern: list[str], name: list[str]) -> bool:
    """Whether a pattern matches, by its definition: one way after the other."""
    if not pattern:
        return not name
    first, *rest = pattern
    if first == "**":
        return means(rest, name) or (bool(name) and means(pattern, name[1:]))
    regex = ".*".join(map(re.escape, first.split("*")))
    return bool(name) and re.fullmatch(regex, name[0]) is not None and means(rest, name[1:])


@given(PATTERNS, NAMES)
def test_a_pattern_matches_what_its_definition_says(pattern: str, name: str) -> None:
    assert NamePattern(pattern).matches(name) is means(pattern.split("/"), name.split("/"))


@given(NAMES)
def test_a_name_matches_itself_and_two_stars(name: str) -> None:
    assert NamePattern(name).matches(name)
    assert NamePattern("**").matches(name)
    assert NamePattern(f"{name}/**").matches(name)
    assert not NamePattern(name).matches(f"{name}a")


@pytest.mark.parametrize(
    ("pattern", "matched", "others"),
    [
        ("emb/**", ["emb", "emb/a", "emb/a/b"], ["embed", "a/emb", "emb2/a"]),
        ("emb/*", ["emb/a", "emb/"], ["emb", "emb/a/b"]),
        ("**/bias", ["bias", "a/bias", "a/b/bias"], ["bias/a", "a.bias"]),
        ("dense.*", ["dense.weight", "dense."], ["dense", "dense.a/b", "Dense.a"]),
        ("a*b*c", ["abc", "a1b2c", "abbcc"], ["acb", "ab", "a/b/c"]),
    ],
)
def test_stars_stay_within_a_segment_unless_there_are_two(
    pattern: str, matched: list[str], others: list[str]
) -> None:
    found = NamePattern(pattern)
    assert [*filter(found.matches, [*matched, *others])] == matched


def test_two_stars_are_a_segment_of_their_own() -> None:
    with pytest.raises(ValueError, match=r"only part of 'a\*\*'"):
        NamePattern("emb/a**")


def test_names_that_almost_match_in_many_ways_are_decided_at_once() -> None:
    # By trying one way after the other, neither of these would end.
    assert not NamePattern("/".join(["**", "a"] * 20) + "/b").matches("/".join("a" * 256))
    assert not NamePattern("*a" * 40 + "b").matches("a" * 512)
