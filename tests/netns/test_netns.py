"""Hosts with addresses of their own train together, by the manifests' own commands."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.demo import BY_TURNS, DEMO_RMSE, demo_error
from tests.deploy.processes.process_tree import is_alive, python
from tests.eavesdropping import WORDS, overheard
from tests.netns.conftest import Cluster
from tests.netns.host import Host
from tests.netns.training import (
    MEGABYTE,
    STEPS,
    TRAINED_FOR_A_WHILE,
    WORKERS,
    grows,
    updates,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.netns, pytest.mark.timeout(900)]

SERVERS = ("ps-0", "ps-1")
CUT_SECONDS = 10.0


def test_a_worker_that_was_cut_off_goes_on_and_the_demo_ends_well(
    cluster: Cluster, tmp_path: Path
) -> None:
    hosts, network = cluster.hosts, cluster.network
    with overheard(network.bridge, WORDS, network.place) as found:
        for host in hosts.values():
            host.start()
        grows(cluster, "worker-1", TRAINED_FOR_A_WHILE)
        assert uses_data_port(hosts["ps-0"])
    # What the test with certificates shows that nobody hears.
    assert found.words == {*WORDS}

    saves(tmp_path / "claim-training" / "checkpoints")
    network.cut("worker-1")
    lost = network.bytes_to("worker-1")
    others = network.bytes_to("worker-0")
    time.sleep(CUT_SECONDS)
    assert network.bytes_to("worker-1") < lost + MEGABYTE
    assert network.bytes_to("worker-0") > others + MEGABYTE

    network.heal("worker-1")
    healed = time.monotonic()
    grows(cluster, "worker-1", MEGABYTE)
    print(f"\nworker-1 went on {time.monotonic() - healed:.1f} s after it was back")

    for name in WORKERS:
        assert hosts[name].exit_code(seconds=600) == 0, hosts[name].log
    print(hosts["worker-0"].log)
    assert abs(demo_error(hosts["worker-0"].log) - DEMO_RMSE) < BY_TURNS
    addresses = [f"{name}.ps:2222" for name in SERVERS]
    assert updates(hosts["ps-0"], addresses) == {STEPS * len(WORKERS)}
    for name in SERVERS:
        hosts[name].stop()
        assert hosts[name].exit_code(seconds=30) == 0
        assert '"event": "stopped"' in hosts[name].log


def saves(checkpoints: Path) -> None:
    """Waits until there is another checkpoint.

    The first worker saves after each epoch, and waits then for a step that the other one is in.
    """
    before = {*checkpoints.iterdir()}
    eventually(lambda: bool({*checkpoints.iterdir()} - before), seconds=100, poll=0.1)


def uses_data_port(host: Host) -> bool:
    """Whether anybody is connected to a server other than by gRPC."""
    shown = ("ss", "--no-header", "--tcp", "--numeric", "state", "established")
    return bool(host.namespace.enter(*shown, "( sport = :2225 )"))


def test_namespaces_end_with_a_program_that_is_killed() -> None:
    program = """if True:
        import sys
        from benchmarks.harness.namespace import Namespace
        space = Namespace()
        inside = space.start("sleep", "600", output=sys.stderr)
        print(space.holder.pid, inside.pid, flush=True)
        inside.wait()
    """
    with python("-c", program, output=subprocess.PIPE) as maker:
        assert maker.stdout is not None
        pids = [int(word) for word in maker.stdout.readline().split()]
        assert len(pids) == 2 and all(map(is_alive, pids))
        maker.send_signal(signal.SIGKILL)
        eventually(lambda: not any(map(is_alive, pids)))
