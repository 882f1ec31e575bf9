"""Names, versions, deadlines and options that both ends agree on."""

from __future__ import annotations

import pytest

from stratagem_proto import protocol
from stratagem_proto.errors import InvalidNameError, ProtocolVersionError
from stratagem_rpc import channel


@pytest.mark.parametrize("name", ["a", "net.0/weight:part_1", "x" * 512])
def test_a_name_within_the_rules_passes(name: str) -> None:
    protocol.check_name(name)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("", "0 characters"), ("x" * 513, "513 characters"), ("a b", "rename it")],
)
def test_a_name_outside_the_rules_says_why(name: str, complaint: str) -> None:
    with pytest.raises(InvalidNameError, match=complaint):
        protocol.check_name(name)


@pytest.mark.parametrize("version", [0, protocol.PROTOCOL_VERSION + 1])
def test_a_peer_of_another_version_is_told_both(version: int) -> None:
    both = f"version {version}, this server {protocol.PROTOCOL_VERSION}"
    with pytest.raises(ProtocolVersionError, match=both):
        protocol.check_version(version)


def test_a_deadline_grows_with_the_data_and_the_wait() -> None:
    deadlines = channel.Deadlines(call=2.0, slowest_bytes_per_second=1e3)
    assert deadlines.attempt(nbytes=5_000, wait=10.0) == 17.0


def test_keepalive_is_set_on_both_sides() -> None:
    """A server with defaults ends a connection that pings as often as ours do."""
    client, server = dict(channel.CHANNEL_OPTIONS), dict(channel.SERVER_OPTIONS)
    tolerated = server["grpc.http2.min_recv_ping_interval_without_data_ms"]
    assert tolerated < client["grpc.keepalive_time_ms"]
    assert server["grpc.http2.max_ping_strikes"] == 0
