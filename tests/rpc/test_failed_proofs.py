"""How long proofs wait of addresses that have sent wrong ones."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stratagem_proto.errors import ResourceExhaustedError
from stratagem_rpc.serving.entrance import host_of
from stratagem_rpc.serving.handshake import FailedProofs

HERE, THERE = "10.0.0.1", "10.0.0.2"


def after(count: int, address: str = HERE) -> FailedProofs:
    """What is known once an address has sent so many wrong proofs."""
    failed = FailedProofs()
    for _ in range(count):
        failed.note_failure(address, 0.0)
    return failed


def test_waits_grow_and_are_bounded() -> None:
    waits = [after(count).begin(HERE, 1.0) for count in range(12)]
    assert waits[:3] == [0.0, 0.0, 0.0]
    assert waits[3] == 0.1
    assert all(later == min(2 * earlier, 2.0) for earlier, later in pairwise(waits[3:]))
    assert after(10_000).begin(HERE, 1.0) == 2.0


def test_an_address_waits_for_itself_alone() -> None:
    failed = after(10)
    assert failed.begin(THERE, 1.0) == 0.0
    assert failed.begin(HERE, 1.0) == 2.0


def test_an_address_that_has_been_quiet_begins_anew() -> None:
    failed = after(10)
    assert failed.begin(HERE, 59.0) == 2.0
    assert failed.begin(HERE, 61.0) == 0.0
    failed.note_failure(HERE, 61.0)
    assert failed.begin(HERE, 61.0) == 0.0


def test_so_many_wait_at_a_time_and_others_come_again() -> None:
    failed = after(5)
    for _ in range(64):
        failed.begin(HERE, 1.0)
    with pytest.raises(ResourceExhaustedError, match=r"64 proofs from 10\.0\.0\.1 wait") as caught:
        failed.begin(HERE, 1.0)
    assert caught.value.retry_seconds > 0
    assert failed.begin(THERE, 1.0) == 0.0
    failed.end(HERE)
    assert failed.begin(HERE, 1.0) > 0


def test_few_addresses_are_remembered_however_many_there_are() -> None:
    failed = FailedProofs()
    for number in range(10_000):
        for _ in range(4):
            failed.note_failure(f"address {number}", 0.0)
    assert len(failed) == 4096
    assert failed.begin("address 0", 1.0) == 0.0
    assert failed.begin("address 9999", 1.0) > 0.0


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.1:2222", "10.0.0.1"),
        ("ipv6:%5B::1%5D:2222", "::/64"),
        ("ipv6:[2001:db8::17]:2222", "2001:db8::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:2222", "fe80::/64"),
    ],
)
def test_an_address_is_without_its_port_and_that_of_ipv6_is_its_network(
    peer: str, host: str
) -> None:
    assert host_of(peer) == host
