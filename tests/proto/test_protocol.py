"""Names, versions, deadlines and options that both ends agree on."""

from __future__ import annotations

import pytest

from stratagem_proto import protocol
from stratagem_proto.errors import InvalidNameError, ProtocolVersionError
from stratagem_proto.v1.session_pb2 import OpenSessionRequest
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


NEWEST, OLDEST = protocol.PROTOCOL_VERSION, protocol.OLDEST_PROTOCOL_VERSION


def speaker(latest: int, oldest: int = 0, release: str = "9.9.9") -> OpenSessionRequest:
    return OpenSessionRequest(
        protocol_version=latest, oldest_protocol_version=oldest, release=release
    )


def test_both_ends_speak_the_latest_version_that_both_know() -> None:
    assert protocol.agreed_version(speaker(NEWEST)) == NEWEST
    assert protocol.agreed_version(speaker(NEWEST + 1, NEWEST)) == NEWEST
    assert protocol.agreed_version(speaker(NEWEST + 5, OLDEST)) == NEWEST
    assert protocol.agreed_version(OpenSessionRequest(**protocol.spoken())) == NEWEST


@pytest.mark.parametrize(
    ("latest", "oldest"), [(0, 0), (OLDEST - 1, 0), (NEWEST + 1, 0), (NEWEST + 2, NEWEST + 1)]
)
def test_who_knows_none_of_the_others_versions_is_told_all(latest: int, oldest: int) -> None:
    with pytest.raises(ProtocolVersionError) as caught:
        protocol.agreed_version(speaker(latest, oldest))
    theirs = f"versions {oldest} to {latest}" if oldest else f"version {latest}"
    ours = f"version {NEWEST}" if OLDEST == NEWEST else f"versions {OLDEST} to {NEWEST}"
    assert f"the client speaks protocol {theirs} (stratagem 9.9.9), this" in caught.value.message
    assert f"this server protocol {ours} (stratagem {protocol.release()})" in caught.value.message


def test_a_deadline_grows_with_the_data_and_the_wait() -> None:
    deadlines = channel.Deadlines(call=2.0, slowest_bytes_per_second=1e3)
    assert deadlines.attempt(nbytes=5_000, wait=10.0) == 17.0


def test_keepalive_is_set_on_both_sides() -> None:
    """A server with defaults ends a connection that pings as often as ours do."""
    client, server = dict(channel.CHANNEL_OPTIONS), dict(channel.SERVER_OPTIONS)
    tolerated = server["grpc.http2.min_recv_ping_interval_without_data_ms"]
    assert tolerated < client["grpc.keepalive_time_ms"]
    assert server["grpc.http2.max_ping_strikes"] == 0
