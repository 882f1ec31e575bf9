"""The pods of an overlay, on hosts of their own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.harness.namespace import missing
from benchmarks.harness.network import SUBNET, Network, addresses
from tests.deploy.manifests.issuing import certificate_secrets
from tests.deploy.manifests.pods import Pod, pods
from tests.netns.control_plane import ControlPlane
from tests.netns.host import Host
from tests.netns.volumes import Volumes

RATE = "40mbit"
"""A step then takes a tenth of a second, and an interruption is a small part of all.

After a long one a worker would train by itself at the end, on its part of the ratings.
"""

CONTROL_PLANE = f"{SUBNET}.200"


@dataclass(frozen=True)
class Cluster:
    """Hosts by the names of their pods, and what connects them."""

    hosts: dict[str, Host]
    network: Network


@pytest.fixture(autouse=True)
def namespaces() -> None:
    """Skips where there are none."""
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """The pods of `overlays/local`, not started; nothing of them is left."""
    with ExitStack() as stack:
        network = stack.enter_context(closing(Network(RATE)))
        volumes = Volumes(tmp_path, token_secret())
        yield Cluster(_hosts(stack, network, "overlays/local", volumes), network)


@pytest.fixture
def encrypted_cluster(tmp_path: Path) -> Iterator[tuple[Cluster, str]]:
    """The same of `overlays/tls`, with certificates, and the token of its tasks."""
    with ExitStack() as stack:
        network = stack.enter_context(closing(Network(RATE)))
        found = {**token_secret(), **certificate_secrets("overlays/tls")}
        hosts = _hosts(stack, network, "overlays/tls", Volumes(tmp_path, found))
        yield Cluster(hosts, network), found["token"]["token"]


@pytest.fixture
def replicated_cluster(tmp_path: Path) -> Iterator[tuple[Cluster, ControlPlane]]:
    """The same of `overlays/replicas`, and what keeps their Leases, which has started."""
    with ExitStack() as stack:
        network = stack.enter_context(closing(Network(RATE)))
        plane = ControlPlane(CONTROL_PLANE, "stratagem", tmp_path)
        stack.enter_context(closing(plane))
        network.join(plane.host, "control-plane", CONTROL_PLANE)
        plane.start()
        volumes = Volumes(tmp_path, token_secret())
        hosts = _hosts(stack, network, "overlays/replicas", volumes, plane.settings)
        yield Cluster(hosts, network), plane


def token_secret() -> dict[str, dict[str, str]]:
    """The secret with the token of a cluster, by its name."""
    return {"token": {"token": secrets.token_hex()}}


def _hosts(
    stack: ExitStack, network: Network, overlay: str, volumes: Volumes, kube: Path | None = None
) -> dict[str, Host]:
    """A host for each pod, with the settings of a client of Kubernetes if there are any."""
    planned = pods(overlay)
    found = addresses([pod.name for pod in planned])
    names = volumes.folder / "hosts"
    names.write_text(host_names(planned, found))
    hosts = {}
    for pod in planned:
        host = Host(
            pod, volumes.folder / pod.name, {"KUBECONFIG": "/kube/config"} if kube else None
        )
        stack.enter_context(closing(host))
        network.join(host.namespace, pod.name, found[pod.name])
        host.mount({**volumes.mounts(pod), **({"/kube": kube} if kube else {})}, names)
        hosts[pod.name] = host
    return hosts


def host_names(planned: Sequence[Pod], found: dict[str, str]) -> str:
    """What the cluster's DNS would know of pods, in the form of /etc/hosts."""
    lines = [" ".join((found[pod.name], *pod.dns_names)) for pod in planned]
    return "\n".join(["127.0.0.1 localhost", *lines, ""])
