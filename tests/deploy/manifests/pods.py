"""The pods that Kubernetes would make of the manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.deploy.manifests import workloads
from tests.deploy.manifests.environment import environment, expanded
from tests.deploy.manifests.rendering import Manifest, rendered


@dataclass(frozen=True)
class Container:
    """What runs in a pod.

    Attributes:
        name: Its name.
        image: Its image.
        command: What runs in it, with the values of variables.
        environment: Its variables; those of the image and of Kubernetes come besides.
        ports: The numbers of the ports that it declares, by their names.
        directory: Where it runs; "" for the directory of the image.
        mounts: The names of volumes by where they are.
        manifest: All that the manifest says of it.
    """

    name: str
    image: str
    command: Sequence[str]
    environment: Mapping[str, str]
    ports: Mapping[str, int]
    directory: str
    mounts: Mapping[str, str]
    manifest: Manifest


@dataclass(frozen=True)
class Pod:
    """One pod.

    Attributes:
        name: Its name; that of a Job's pod ends with characters that nobody knows before, which are
            left out here.
        namespace: Its namespace.
        hostname: The name of its machine, as it sees it.
        subdomain: The headless service that it is known by; "" for none.
        labels: Its labels.
        first: Containers that run before, one after the other, each to its end.
        container: The one that stays.
        spec: All that the manifest says of it.
    """

    name: str
    namespace: str
    hostname: str
    subdomain: str
    labels: Mapping[str, str]
    first: Sequence[Container]
    container: Container
    spec: Manifest

    @property
    def component(self) -> str:
        """The job of its task: "ps", "worker" or "chief"."""
        return self.labels["app.kubernetes.io/component"]

    @property
    def command(self) -> Sequence[str]:
        return self.container.command

    @property
    def environment(self) -> Mapping[str, str]:
        return self.container.environment

    @property
    def ports(self) -> Mapping[str, int]:
        return self.container.ports

    @property
    def dns_names(self) -> Sequence[str]:
        """The names that the other pods of the namespace find it by, if any."""
        if not self.subdomain:
            return ()
        short = f"{self.hostname}.{self.subdomain}"
        full = f"{short}.{self.namespace}.svc"
        return short, f"{short}.{self.namespace}", full, f"{full}.cluster.local"


def pods(overlay: str) -> Sequence[Pod]:
    """The pods of an overlay, or of the base, such as "overlays/local"."""
    return pods_of(rendered(overlay))


def pods_of(manifests: Sequence[Manifest]) -> Sequence[Pod]:
    """The pods of manifests that are applied together."""
    texts = {
        manifest["metadata"]["name"]: manifest["data"]
        for manifest in manifests
        if manifest["kind"] == "ConfigMap"
    }
    return [_pod(planned, texts) for planned in workloads.planned(manifests)]


def _pod(planned: workloads.Planned, texts: Mapping[str, Mapping[str, str]]) -> Pod:
    spec = planned.spec
    (container,) = _containers(spec["containers"], planned, texts)
    return Pod(
        name=planned.name,
        namespace=planned.namespace,
        hostname=planned.hostname,
        subdomain=planned.subdomain,
        labels=planned.labels,
        first=tuple(_containers(spec.get("initContainers", ()), planned, texts)),
        container=container,
        spec=spec,
    )


def _containers(
    manifests: Sequence[Manifest],
    planned: workloads.Planned,
    texts: Mapping[str, Mapping[str, str]],
) -> Iterator[Container]:
    for manifest in manifests:
        variables = environment(manifest, planned.fields, texts)
        yield Container(
            name=manifest["name"],
            image=manifest["image"],
            command=[expanded(word, variables) for word in _words(manifest)],
            environment=variables,
            ports=_pairs(manifest, "ports", "name", "containerPort"),
            directory=manifest.get("workingDir", ""),
            mounts=_pairs(manifest, "volumeMounts", "mountPath", "name"),
            manifest=manifest,
        )


def _words(manifest: Manifest) -> list[str]:
    return [*manifest.get("command", ()), *manifest.get("args", ())]


def _pairs(manifest: Manifest, field: str, key: str, value: str) -> dict[str, Any]:
    return {entry[key]: entry[value] for entry in manifest.get(field, ())}
