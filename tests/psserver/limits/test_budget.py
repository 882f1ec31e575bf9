"""The bytes that requests may occupy."""

from __future__ import annotations

import pytest

from stratagem_proto.errors import ResourceExhaustedError
from stratagem_psserver.limits import Budget


def test_a_reservation_is_given_back_at_its_end() -> None:
    budget = Budget(10)
    with budget.reserve(7, "a request"):
        assert budget.used == 7
    assert not budget.used


def test_a_reservation_beyond_the_limit_names_what_is_wanted_and_used() -> None:
    budget = Budget(10)
    budget.reserve(7, "a request")
    with pytest.raises(ResourceExhaustedError, match=r"a read needs 4 .*; 7 .* 10"):
        budget.reserve(4, "a read")
    assert budget.used == 7


def test_whether_a_repetition_may_help_is_said() -> None:
    budget = Budget(10)
    budget.reserve(7, "a request")
    with pytest.raises(ResourceExhaustedError, match="repeat it in a moment, or start"):
        budget.reserve(10, "a read")
    with pytest.raises(ResourceExhaustedError, match=r"ask for less, .*--staged-bytes"):
        budget.reserve(11, "a read")


def test_a_refusal_says_when_to_come_again() -> None:
    budget = Budget(4_000_000_000)
    budget.reserve(4_000_000_000, "a request")
    refused = {}
    for nbytes in (1, 2_000_000_000, 5_000_000_000):
        with pytest.raises(ResourceExhaustedError) as caught:
            budget.reserve(nbytes, "a read")
        refused[nbytes] = caught.value.retry_seconds
    assert 0 < refused[1] < 1
    assert refused[2_000_000_000] == pytest.approx(refused[1] + 2)
    assert refused[5_000_000_000] == 0


def test_bytes_are_given_back_once_by_whoever_has_them() -> None:
    budget = Budget(10)
    with budget.reserve(7, "a request") as first:
        heir = first.hand_over()
    assert budget.used == 7
    heir.release()
    heir.release()
    assert budget.used == 0


def test_one_client_is_refused_beyond_its_share_and_others_are_not() -> None:
    budget = Budget(1_000)
    budget.reserve(700, "a request", "greedy")
    with pytest.raises(ResourceExhaustedError, match="700 of them by greedy, whose share is 750"):
        budget.reserve(100, "a request", "greedy")
    budget.reserve(200, "a request", "other")
    budget.reserve(0, "a request", "greedy")
    assert budget.used == 900


def test_no_request_of_a_client_is_larger_than_its_share() -> None:
    budget = Budget(1_000)
    assert budget.largest == 750
    with pytest.raises(ResourceExhaustedError, match="ask for less, or start the server"):
        budget.reserve(751, "a request", "one")
    budget.reserve(750, "a request", "one")


def test_bytes_count_for_whoever_has_them_last() -> None:
    budget = Budget(1_000)
    mine = budget.reserve(700, "a request", "one")
    kept = mine.give_up()
    with pytest.raises(ResourceExhaustedError, match="0 of them by one, whose share is 750"):
        budget.reserve(400, "a request", "one")
    again = budget.reserve(0, "a request", "one")
    again.absorb(kept)
    with pytest.raises(ResourceExhaustedError, match="700 of them by one, whose share is 750"):
        budget.reserve(100, "a request", "one")
    again.release()
    assert budget.used == 0
