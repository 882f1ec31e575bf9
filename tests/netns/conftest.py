"""The pods of an overlay, on hosts of their own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.manifests.pods import Pod, pods
from tests.netns.host import Host
from tests.netns.namespace import missing
from tests.netns.network import Network, addresses
from tests.netns.volumes import Volumes

RATE = "40mbit"
"""A step then takes a tenth of a second, and an interruption is a small part of all.

After a long one a worker would train by itself at the end, on its part of the ratings.
"""


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
    planned = pods("overlays/local")
    found = addresses([pod.name for pod in planned])
    names = tmp_path / "hosts"
    names.write_text(host_names(planned, found))
    volumes = Volumes(tmp_path, {"token": {"token": secrets.token_hex()}})
    with ExitStack() as stack:
        network = stack.enter_context(closing(Network(RATE)))
        hosts = {}
        for pod in planned:
            host = stack.enter_context(closing(Host(pod, tmp_path / pod.name)))
            network.join(host.namespace, pod.name, found[pod.name])
            host.mount(volumes.mounts(pod), names)
            hosts[pod.name] = host
        yield Cluster(hosts, network)


def host_names(planned: Sequence[Pod], found: dict[str, str]) -> str:
    """What the cluster's DNS would know of pods, in the form of /etc/hosts."""
    lines = [" ".join((found[pod.name], *pod.dns_names)) for pod in planned]
    return "\n".join(["127.0.0.1 localhost", *lines, ""])
