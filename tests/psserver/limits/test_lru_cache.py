"""The entries that were used last are kept."""

from __future__ import annotations

from stratagem_psserver.limits import LruCache


def holding(*keys: bytes, most: int = 9, most_in_keys: int = 99) -> LruCache[bytes, int]:
    recent = LruCache[bytes, int](most, most_in_keys)
    for key in keys:
        recent.put(key, len(key))
    return recent


def test_what_was_not_asked_for_the_longest_goes_first() -> None:
    recent = holding(b"a", b"b", most=2)
    assert recent.get(b"a") == 1
    recent.put(b"c", 3)
    assert [recent.get(key) for key in (b"a", b"b", b"c")] == [1, None, 3]


def test_keys_are_no_longer_together_than_they_may_be() -> None:
    recent = holding(b"aa", b"b", b"ccc", most_in_keys=5)
    assert b"aa" not in recent
    assert len(recent) == 2
    recent.put(b"d", 1)
    assert len(recent) == 3


def test_an_entry_takes_the_place_of_the_one_before() -> None:
    recent = holding(b"a", b"b", b"a", most=2, most_in_keys=3)
    recent.put(b"a", 7)
    recent.put(b"c", 1)
    assert [recent.get(key) for key in (b"a", b"b", b"c")] == [7, None, 1]


def test_a_key_that_is_too_long_drops_no_others() -> None:
    recent = holding(b"a", b"b", most_in_keys=4)
    recent.put(b"ccccc", 5)
    assert b"ccccc" not in recent
    assert len(recent) == 2
