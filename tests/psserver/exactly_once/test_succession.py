"""Which program of several coordinates."""

from __future__ import annotations

import json

import pytest

from stratagem_proto.errors import SupersededError
from stratagem_proto.v1.succession_pb2 import Incumbent
from stratagem_psserver.exactly_once.sessions import Succession

FIRST, SECOND, THIRD = (bytes([number]) * 16 for number in (1, 2, 3))


def incumbent(number: int, program: bytes = b"", finished: bool = False) -> Incumbent:
    return Incumbent(number=number, program=program, name=f"program {number}", finished=finished)


def succession(*programs: bytes) -> Succession:
    """These have succeeded each other."""
    made = Succession()
    for number, program in enumerate(programs, 1):
        assert made.succeed(incumbent(number, program), program)
    return made


def test_nobody_is_refused_before_somebody_has_the_place() -> None:
    succession().require(FIRST)


def test_a_former_program_is_refused_by_name() -> None:
    after = succession(FIRST, SECOND)
    after.require(SECOND)
    after.require(b"")
    with pytest.raises(SupersededError, match="program 2 coordinates this cluster now"):
        after.require(FIRST)


def test_a_program_that_has_not_waited_for_its_turn_is_refused() -> None:
    with pytest.raises(SupersededError):
        succession(FIRST).require(SECOND)


def test_of_two_that_want_the_same_place_the_first_one_has_it() -> None:
    after = succession(FIRST)
    assert after.succeed(incumbent(2, SECOND), SECOND)
    assert not after.succeed(incumbent(2, THIRD), THIRD)
    assert not after.succeed(incumbent(1, THIRD), THIRD)
    assert after.incumbent.program == SECOND


def test_an_incumbent_comes_again_in_another_session() -> None:
    after = succession(FIRST)
    assert after.succeed(incumbent(1, FIRST), b"another session")
    assert after.session == b"another session"


def test_a_former_program_cannot_give_the_place_up() -> None:
    after = succession(FIRST, SECOND)
    assert not after.succeed(incumbent(1), FIRST)
    assert not after.succeed(incumbent(2), FIRST)
    assert after.succeed(incumbent(2, finished=True), SECOND)
    assert after.incumbent.finished


def test_once_the_last_program_has_left_only_former_ones_are_refused() -> None:
    after = succession(FIRST, SECOND)
    after.succeed(incumbent(2), SECOND)
    after.require(SECOND)
    after.require(THIRD)
    with pytest.raises(SupersededError):
        after.require(FIRST)


def test_a_program_that_has_left_is_refused_once_another_one_has_the_place() -> None:
    after = succession(FIRST)
    after.succeed(incumbent(1), FIRST)
    after.succeed(incumbent(2, SECOND), SECOND)
    with pytest.raises(SupersededError):
        after.require(FIRST)


def test_a_former_program_may_have_a_later_turn() -> None:
    succession(FIRST, SECOND, FIRST).require(FIRST)


def test_another_run_of_the_server_knows_the_same() -> None:
    before, again = succession(FIRST, SECOND), Succession()
    again.restore(json.loads(json.dumps(before.facts())))
    assert again.facts() == before.facts()
    with pytest.raises(SupersededError):
        again.require(FIRST)
    assert again.succeed(incumbent(2), SECOND)
