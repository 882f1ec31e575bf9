"""Servers in pods are given what they understand, and what they need."""

from __future__ import annotations

from pathlib import Path

from stratagem_psserver.replication.calls import FOLLOWING
from stratagem_psserver.server import ParameterServer
from stratagem_reader.server import LOOKUPS
from tests.deploy.manifests.rendering import OVERLAYS
from tests.deploy.manifests.tasks import index, number, port, servers
from tests.full import a_few
from tests.probes import SERVING, health_at
from tests.psserver.replication.pairs import pair
from tests.waiting import eventually

MEMORY = {"Mi": 1 << 20, "Gi": 1 << 30}

in_each_overlay = a_few("overlay", OVERLAYS, "`make lint` validates all overlays", 4)


@in_each_overlay
def test_servers_understand_their_commands(overlay: str) -> None:
    assert servers(overlay)
    for pod, given in servers(overlay):
        assert given["job"] == pod.component
        assert given["task"] == index(pod)
        if given.get("replicas", 1) > 1:
            assert given["replica"] == number(pod)
        assert port(given["bind"]) == pod.ports["grpc"]
        assert port(given["health_bind"]) == pod.ports["health"]
        assert given["insecure"] is (given["tls"] is None), "without certificates nothing is"


@in_each_overlay
def test_servers_have_time_to_drain(overlay: str) -> None:
    for pod, given in servers(overlay):
        assert given["drain_seconds"] < pod.spec["terminationGracePeriodSeconds"]


@in_each_overlay
def test_servers_refuse_what_would_not_fit_in_their_memory(overlay: str) -> None:
    for pod, given in servers(overlay):
        if pod.component == "ps":
            limit = size(pod.container.manifest["resources"]["limits"]["memory"])
            assert given["variable_bytes"] + given["staged_bytes"] < 0.75 * limit


def test_servers_of_jobsets_are_the_same_wherever_they_are_written() -> None:
    written = [
        [pod.spec for pod, _ in servers(f"overlays/{name}") if pod.component == "ps"]
        for name in ("jobset", "kubeflow")
    ]
    assert written[0] == written[1] != []


def size(quantity: str) -> int:
    return int(quantity[:-2]) * MEMORY[quantity[-2:]]


def test_probes_ask_the_port_and_the_service_that_answer(
    server: ParameterServer, tmp_path: Path
) -> None:
    with pair(tmp_path) as both:
        replica = both.servers[0]
        eventually(lambda: health_at(replica.health_address, FOLLOWING) == SERVING)
        for overlay in OVERLAYS:
            for pod, given in servers(overlay):
                for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                    probe = pod.container.manifest[kind]["grpc"]
                    assert probe["port"] == port(given["health_bind"])
                    if given["job"] == "serve":
                        # It serves once it has a version.
                        assert probe.get("service", LOOKUPS.full_name) == LOOKUPS.full_name
                        continue
                    answering = replica if given.get("replicas", 1) > 1 else server
                    health = health_at(answering.health_address, probe.get("service", ""))
                    assert health == SERVING
