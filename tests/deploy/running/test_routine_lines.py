"""Routine logs of servers are shown only on request, and others in words."""

from __future__ import annotations

import json

import pytest

from stratagem_deploy.running.run import for_people

ENDED = {"task": "/job:ps/task:0", "event": "it has ended", "level": "warning"}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('{"event": "serving", "level": "info"}', []),
        (json.dumps(ENDED), ["it has ended"]),
        (
            json.dumps(ENDED | {"client": "worker:1", "s": 3}),
            ["it has ended: client worker:1, s 3"],
        ),
        (
            json.dumps(ENDED | {"exception": "Trace\n  x"}),
            ["it has ended", "Trace", "  x"],
        ),
        ("Traceback (most recent call last):", ["Traceback (most recent call last):"]),
        ('{"a": 1}', ['{"a": 1}']),
        ('"a string"', ['"a string"']),
        ("", [""]),
    ],
)
def test_only_routine_is_kept_back_and_no_record_is_shown_as_such(
    line: str, shown: list[str]
) -> None:
    assert for_people(line) == shown
