"""Restorations that servers know of after they went back to a checkpoint."""

from __future__ import annotations

import json

from stratagem_psserver.checkpoints.announcements import Announcements

CHIEF, LATER = b"chief", b"later"


def resumed(*sessions: bytes) -> Announcements:
    """What a server knows that begins with a checkpoint, and who is back there."""
    before = Announcements()
    before.add("first", CHIEF)
    after = Announcements()
    after.restore(json.loads(json.dumps(before.facts())))
    for session in sessions:
        after.session_opened(session)
    return after


def test_what_a_chief_has_announced_counts_while_it_goes_on() -> None:
    known = resumed(CHIEF)
    known.add("second", CHIEF)
    assert known.identities == ["first", "second"]


def test_another_run_of_the_program_waits_for_its_own_chief() -> None:
    known = resumed(LATER)
    assert known.identities == []
    known.add("second", LATER)
    assert known.identities == ["second"]
    # It may yet come back, as of a checkpoint that is taken now.
    again = Announcements()
    again.restore(known.facts())
    again.session_opened(CHIEF)
    assert again.identities == ["first"]
