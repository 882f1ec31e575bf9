"""Versions that no two runs of a server give."""

from __future__ import annotations

import os

from stratagem_proto.protocol import first_of_another_run, is_newer


def test_within_a_run_the_higher_version_is_newer() -> None:
    first = first_of_another_run(os.urandom)
    assert is_newer(first + 1, than=first)
    assert not is_newer(first, than=first)
    assert not is_newer(first, than=first + 1)


def test_a_version_of_another_run_is_newer_either_way() -> None:
    some, other = first_of_another_run(os.urandom), first_of_another_run(os.urandom) + 5
    assert is_newer(some, than=other)
    assert is_newer(other, than=some)
    assert is_newer(some, than=1 << 20)
