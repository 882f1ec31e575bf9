"""What one client may use of a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratagem_rpc.shares import Shares, share_of

CLIENTS = st.sampled_from(["one", "other", "third"])


@given(st.lists(st.tuples(CLIENTS, st.integers(1, 200))))
def test_whatever_clients_take_something_is_left_for_the_next(
    wanted: list[tuple[str, int]],
) -> None:
    shares = Shares(1_000)
    for client, amount in wanted:
        if shares.used_by(client) + amount <= shares.share(client):
            shares.count(client, amount)
    assert shares.used == sum(map(shares.used_by, ("one", "other", "third"))) < 1_000
    assert shares.share("next") == (1_000 - shares.used) * 3 // 4


def test_who_is_alone_has_most_and_who_comes_later_has_most_of_the_rest() -> None:
    assert share_of(1_000, 0) == 750
    assert share_of(1_000, 750) == 187
    assert share_of(1_000, 1_100) == 0


def test_what_is_given_back_is_there_for_others() -> None:
    shares = Shares(100)
    shares.count("one", 75)
    shares.count("one", -75)
    assert (shares.used, shares.used_by("one"), shares.share("other")) == (0, 0, 75)


def test_what_the_server_can_give_back_makes_no_share_smaller() -> None:
    shares = Shares(100)
    shares.count("", 60)
    assert (shares.share("one"), shares.share("")) == (75, 100)


@given(st.lists(st.tuples(st.sampled_from(["one", "other", ""]), st.integers(0, 60)), max_size=8))
def test_what_a_client_lacks_is_what_its_share_and_the_limit_leave(
    used: list[tuple[str, int]],
) -> None:
    shares = Shares(100)
    for client, amount in used:
        shares.count(client, amount)
    for client in ("one", "third", ""):
        for amount in (1, 30, 100):
            of_limit = shares.used + amount - shares.limit
            of_share = shares.used_by(client) + amount - shares.share(client)
            assert shares.lacks(client, amount) == max(of_limit, of_share)
