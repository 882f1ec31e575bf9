"""What probes are told of a replica."""

from __future__ import annotations

from pathlib import Path

from stratagem_psserver.replication.calls import FOLLOWING
from stratagem_psserver.server import ParameterServer
from tests.probes import SERVING, health_at
from tests.psserver.replication.pairs import pair, report_of
from tests.waiting import eventually


def serves(server: ParameterServer, service: str) -> bool:
    return health_at(server.health_address, service) == SERVING


async def looked_at(server: ParameterServer) -> None:
    """Does what a server does now and then."""
    server._end_leases()


def test_each_of_two_replicas_may_end_once_the_other_has_the_state(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        first, second = both.servers.values()
        eventually(lambda: serves(first, FOLLOWING) and serves(second, FOLLOWING))


def test_a_replica_without_the_state_is_healthy_but_the_other_one_has_to_stay(
    tmp_path: Path,
) -> None:
    with pair(tmp_path, first=[0]) as both:
        primary = both.servers[0]
        eventually(lambda: serves(primary, FOLLOWING))
        # It is refused.
        stranger = both.start(1, failover_seconds=2.0)
        eventually(lambda: bool(report_of(stranger).trouble))
        stranger._loop.run(looked_at(stranger))
        assert serves(stranger, "") and not serves(stranger, FOLLOWING)
        stranger.stop(grace=0)
        backup = both.start(1)
        eventually(lambda: serves(backup, FOLLOWING))
        primary.stop(grace=0)
        eventually(lambda: serves(backup, FOLLOWING))
