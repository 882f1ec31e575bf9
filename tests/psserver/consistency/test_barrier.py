"""Barriers: which task may pass, and when."""

from __future__ import annotations

import json

import pytest

from stratagem_proto.errors import (
    InvalidArgumentError,
    InvalidNameError,
    ResourceExhaustedError,
)
from stratagem_psserver.consistency.barriers import MAX_GATHERINGS, MAX_PASSED, Barriers
from stratagem_rpc.shares import share_of

FIRST, SECOND, LATER = b"first", b"second", b"later"


def arrive(barriers: Barriers, session: bytes, generation: int = 0) -> None:
    """Lets the task 0 come, in its first session or a later one, or task 1."""
    task = int(session == SECOND)
    barriers.arrive("b", generation, 2, f"/job:worker/task:{task}", session)


def test_the_last_task_opens_the_barrier_for_all() -> None:
    barriers = Barriers()
    arrive(barriers, FIRST)
    assert barriers.is_passed("b", 0, FIRST) is None
    assert len(barriers.arrived("b")) == 1
    arrive(barriers, SECOND)
    assert barriers.is_passed("b", 0, FIRST) and barriers.is_passed("b", 0, SECOND)


def test_a_task_that_arrives_again_counts_once() -> None:
    barriers = Barriers()
    arrive(barriers, FIRST)
    arrive(barriers, FIRST)
    assert barriers.is_passed("b", 0, FIRST) is None


def test_a_repetition_of_an_earlier_passage_is_recognised() -> None:
    barriers = Barriers()
    for generation in range(2):
        arrive(barriers, FIRST, generation)
        arrive(barriers, SECOND, generation)
    arrive(barriers, FIRST, 0)
    assert barriers.is_passed("b", 0, FIRST)
    assert barriers.is_passed("b", 2, FIRST) is None


def test_another_run_of_the_program_must_gather_again() -> None:
    barriers = Barriers()
    arrive(barriers, FIRST)
    arrive(barriers, SECOND)
    barriers.session_ended(SECOND)
    arrive(barriers, LATER)
    assert barriers.is_passed("b", 0, LATER) is None


def test_a_program_that_is_started_again_alone_goes_through_what_others_passed() -> None:
    """At a barrier at the start of a program, where nobody will come again."""
    barriers = Barriers()
    for generation in range(2):
        arrive(barriers, FIRST, generation)
        arrive(barriers, SECOND, generation)
    arrive(barriers, LATER, 0)
    arrive(barriers, LATER, 1)
    assert barriers.is_passed("b", 1, LATER)
    arrive(barriers, LATER, 2)
    assert barriers.is_passed("b", 2, LATER) is None
    arrive(barriers, SECOND, 2)
    assert barriers.is_passed("b", 2, LATER) and barriers.is_passed("b", 2, SECOND)


def test_a_task_that_started_again_takes_its_own_place() -> None:
    barriers = Barriers()
    barriers.arrive("b", 0, 2, "/job:worker/task:0", FIRST)
    barriers.arrive("b", 0, 2, "/job:worker/task:0", LATER)
    assert barriers.is_passed("b", 0, LATER) is None


def test_a_program_that_is_started_again_alone_meets_the_others() -> None:
    """Although it counts its passages from 0 again, and they do not."""
    barriers = Barriers()
    for generation in range(3):
        arrive(barriers, FIRST, generation)
        arrive(barriers, SECOND, generation)
    barriers.session_ended(FIRST)
    arrive(barriers, SECOND, 3)
    arrive(barriers, LATER, 0)
    assert barriers.is_passed("b", 3, SECOND) and barriers.is_passed("b", 0, LATER)
    arrive(barriers, LATER, 1)
    assert barriers.is_passed("b", 1, LATER) is None
    arrive(barriers, SECOND, 4)
    assert barriers.is_passed("b", 4, SECOND) and barriers.is_passed("b", 1, LATER)


def test_a_session_that_ends_waits_no_longer_but_has_passed_what_it_passed() -> None:
    barriers = Barriers()
    arrive(barriers, FIRST)
    arrive(barriers, SECOND)
    arrive(barriers, FIRST, 1)
    barriers.session_ended(FIRST)
    assert barriers.is_passed("b", 0, FIRST)
    arrive(barriers, SECOND, 1)
    assert barriers.is_passed("b", 1, SECOND) is None
    assert len(barriers.arrived("b")) == 1


def test_tasks_that_disagree_on_the_number_are_both_named() -> None:
    barriers = Barriers()
    barriers.arrive("b", 0, 2, "/job:worker/task:0", FIRST)
    with pytest.raises(InvalidArgumentError, match=r"task:1 .* 3 .*task:0 for 2"):
        barriers.arrive("b", 0, 3, "/job:worker/task:1", SECOND)


def test_a_barrier_has_a_name_and_waits_for_somebody() -> None:
    with pytest.raises(InvalidNameError):
        Barriers().arrive("", 0, 1, "t", FIRST)
    with pytest.raises(InvalidArgumentError):
        Barriers().arrive("b", 0, 0, "t", FIRST)


def test_a_task_waits_at_only_so_many_barriers_and_others_at_more() -> None:
    barriers = Barriers()
    for number in range(share_of(MAX_GATHERINGS, 0)):
        barriers.arrive(f"b{number}", 0, 2, "/job:worker/task:0", FIRST)
    with pytest.raises(ResourceExhaustedError, match="one barrier at a time"):
        arrive(barriers, FIRST)
    barriers.arrive("another", 0, 2, "/job:worker/task:1", SECOND)
    for number in range(2):
        barriers.arrive(f"b{number}", 0, 2, "/job:worker/task:1", SECOND)
    arrive(barriers, FIRST)


def test_the_oldest_passages_are_forgotten() -> None:
    barriers = Barriers()
    for passage in range(MAX_PASSED + 1):
        barriers.arrive(f"b{passage}", 0, 1, "/job:worker/task:0", FIRST)
    assert barriers.is_passed("b0", 0, FIRST) is None
    assert barriers.is_passed("b1", 0, FIRST)
    assert barriers.is_passed(f"b{MAX_PASSED}", 0, FIRST)


def again(barriers: Barriers, *sessions: bytes) -> Barriers:
    """What a server that begins with a checkpoint has, and who is back there."""
    facts = json.loads(json.dumps(barriers.facts([FIRST, SECOND])))
    resumed = Barriers()
    resumed.restore(facts)
    for session in sessions:
        resumed.session_opened(session)
    return resumed


def passed_twice() -> Barriers:
    barriers = Barriers()
    for generation in range(2):
        arrive(barriers, FIRST, generation)
        arrive(barriers, SECOND, generation)
    return barriers


def test_a_server_that_went_back_knows_who_has_passed() -> None:
    barriers = again(passed_twice(), FIRST, SECOND)
    arrive(barriers, FIRST, 1)
    assert barriers.is_passed("b", 1, FIRST)
    assert barriers.is_passed("b", 2, FIRST) is None


def test_who_is_started_again_alone_goes_through_what_others_passed_before_that() -> None:
    barriers = again(passed_twice(), SECOND)
    arrive(barriers, LATER)
    assert barriers.is_passed("b", 0, LATER)


def test_programs_that_begin_with_a_checkpoint_wait_for_each_other() -> None:
    barriers = again(passed_twice())
    arrive(barriers, LATER)
    assert barriers.is_passed("b", 0, LATER) is None


def test_replicas_that_saw_arrivals_in_another_order_know_the_same() -> None:
    replicas = Barriers(), Barriers()
    for barriers, order in zip(replicas, ((FIRST, SECOND), (SECOND, FIRST)), strict=True):
        for session in order:
            arrive(barriers, session)
    one, other = (barriers.facts([FIRST, SECOND])["passed"] for barriers in replicas)
    assert one == other


@pytest.mark.parametrize(("num_tasks", "missing"), [(2, "1 task without"), (3, "2 tasks without")])
def test_tasks_without_a_session_are_counted(num_tasks: int, missing: str) -> None:
    barriers = Barriers()
    barriers.arrive("b", 0, num_tasks, "/job:worker/task:0", FIRST)
    (absent,) = barriers.awaited("b", ["/job:worker/task:0"])
    assert absent.client.startswith(missing)
