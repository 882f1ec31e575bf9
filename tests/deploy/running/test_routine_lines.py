"""Routine logs of servers are shown only on request."""

from __future__ import annotations

import pytest

from stratagem_deploy.running.run import is_routine


@pytest.mark.parametrize(
    ("line", "routine"),
    [
        ('{"event": "serving", "level": "info"}', True),
        ('{"event": "lease ended", "level": "warning"}', False),
        ("Traceback (most recent call last):", False),
        ('"a string"', False),
        ("", False),
    ],
)
def test_only_routine_is_kept_back(line: str, routine: bool) -> None:
    assert is_routine(line) is routine
