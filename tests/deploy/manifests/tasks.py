"""The tasks of a cluster among the pods of an overlay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from stratagem_proto.configuration.model import ProcessSettings
from stratagem_psserver import cli as parameter_server
from stratagem_psserver.cli import ServerOptions
from stratagem_reader import cli as reader_server
from stratagem_reader.cli import ReaderServerOptions
from stratagem_worker import cli as worker_server
from stratagem_worker.cli import WorkerOptions
from tests.deploy.manifests.pods import Pod, pods
from tests.deploy.manifests.rendering import Manifest, rendered
from tests.deploy.manifests.workloads import COMPLETION_INDEX, POD_INDEX, TASK

SERVERS = {"ps": parameter_server.app, "serve": reader_server.app, "worker": worker_server.app}
"""What `stratagem` with one of these words is."""

SETTINGS: Mapping[str, type[ProcessSettings]] = {
    "ps": ServerOptions,
    "serve": ReaderServerOptions,
    "worker": WorkerOptions,
}
"""What it makes of its options."""

COORDINATED = "overlays/coordinator"
"""The overlay whose workers serve a coordinator; what builds on it begins so, too."""


def options(app: typer.Typer, arguments: Sequence[str]) -> Mapping[str, Any]:
    """The options of a command line; fails where the command would refuse them."""
    command = typer.main.get_command(app)
    return command.make_context("stratagem", list(arguments)).params


def servers(overlay: str) -> list[tuple[Pod, Mapping[str, Any]]]:
    """Pods with a server, and the settings that it is given."""
    return [
        (pod, settings(pod.command[1], pod.command[2:]))
        for pod in pods(overlay)
        if pod.command[0] == "stratagem"
    ]


def settings(word: str, arguments: Sequence[str]) -> Mapping[str, Any]:
    """What a server makes of its options."""
    model, flags = SETTINGS[word], options(SERVERS[word], arguments)
    own = {name: flags[name] for name in model.model_fields}
    return model.read(own).model_dump()


def programs(overlay: str) -> list[Pod]:
    """Pods that run a program of the user."""
    return [pod for pod in pods(overlay) if pod.command[0] == "python"]


def number(pod: Pod) -> int:
    """What Kubernetes numbers a pod by."""
    return int(pod.labels.get(POD_INDEX) or pod.labels[COMPLETION_INDEX])


def index(pod: Pod) -> int:
    """The index of a pod's task: its number, unless a folder makes it for one task."""
    return int(pod.labels.get(TASK) or number(pod))


def addresses(overlay: str, component: str, name: int) -> list[str]:
    """Where the servers of a job listen; replicas of a task with commas between.

    Args:
        overlay: The overlay.
        component: The job.
        name: Which of the names that each pod has.
    """
    found: dict[int, list[str]] = {}
    for pod, given in servers(overlay):
        if pod.component == component:
            address = f"{pod.dns_names[name]}:{pod.ports['grpc']}"
            found.setdefault(given["task"], []).append(address)
    return [",".join(found[task]) for task in range(len(found))]


def port(address: str) -> int:
    """The port of "host:port"."""
    return int(address.rpartition(":")[2])


def of_kind(overlay: str, kind: str) -> dict[str, Manifest]:
    """The manifests of a kind by their names."""
    return {
        manifest["metadata"]["name"]: manifest
        for manifest in rendered(overlay)
        if manifest["kind"] == kind
    }


def selects(selector: Manifest, pod: Pod) -> bool:
    """Whether a pod has the labels that a selector asks for."""
    labels: Mapping[str, str] = selector["matchLabels"]
    return labels.items() <= pod.labels.items()
