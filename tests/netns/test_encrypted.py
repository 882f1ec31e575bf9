"""Hosts whose tasks know each other by certificates, and somebody between them who listens."""

from __future__ import annotations

import pytest

from tests.demo import CLOSE, DEMO_RMSE, demo_error
from tests.eavesdropping import WORDS, overheard
from tests.netns.conftest import Cluster
from tests.netns.test_netns import uses_data_port
from tests.netns.training import MEGABYTE, TRAINED_FOR_A_WHILE, grows

pytestmark = [pytest.mark.netns, pytest.mark.timeout(900)]

# Each task has a StatefulSet of its own, whose only pod has number 0.
SERVERS, WORKERS = ("ps-0-0", "ps-1-0"), ("worker-0-0", "worker-1-0")

# Fewer would mean that most of the training was not overheard.
MUCH = 50 * MEGABYTE


def test_nothing_that_hosts_with_certificates_send_can_be_read(
    encrypted_cluster: tuple[Cluster, str],
) -> None:
    cluster, token = encrypted_cluster
    hosts, network = cluster.hosts, cluster.network
    with overheard(network.bridge, [token, *WORDS], network.place) as found:
        for host in hosts.values():
            host.start()
        grows(cluster, WORKERS[1], TRAINED_FOR_A_WHILE)
        assert uses_data_port(hosts[SERVERS[0]])
        for name in WORKERS:
            assert hosts[name].exit_code(seconds=600) == 0, hosts[name].log
    print(f"\n{found.nbytes:,} bytes were overheard, and {sorted(found.words)}")
    assert found.nbytes > MUCH
    assert not found.words
    assert abs(demo_error(hosts[WORKERS[0]].log) - DEMO_RMSE) < CLOSE
    for name in SERVERS:
        hosts[name].stop()
        assert hosts[name].exit_code(seconds=30) == 0
