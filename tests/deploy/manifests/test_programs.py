"""Programs in pods know their cluster."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from examples import coordinator, movielens
from stratagem.cluster_resolver import ClusterResolver, KubernetesClusterResolver
from stratagem_proto.configuration.model import variable
from stratagem_proto.secret_files import TOKEN_FILE
from tests.deploy.manifests.pods import Pod, pods
from tests.deploy.manifests.rendering import OVERLAYS
from tests.deploy.manifests.tasks import (
    COORDINATED,
    SERVERS,
    addresses,
    index,
    options,
    programs,
    servers,
)
from tests.full import a_few
from tests.spec.cluster.kubernetes_api_server import serving

in_each_overlay = a_few("overlay", OVERLAYS, "`make lint` validates all overlays", 4)


@in_each_overlay
def test_programs_wait_for_the_health_of_all_servers(overlay: str) -> None:
    for pod in programs(overlay):
        for container in pod.first:
            waits = container.command[-1]
            assert "until stratagem health $server" in waits
            asked = set(re.findall(r"[^ ]+:\d+", waits))
            assert asked == {
                f"{server.dns_names[0]}:{server.ports['health']}"
                for server, given in servers(overlay)
                if given["job"] != "serve"
            }


@pytest.mark.parametrize("overlay", [one for one in OVERLAYS if not one.startswith(COORDINATED)])
def test_workers_know_the_cluster_and_their_place_in_it(
    overlay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (save,) = {given["restore"] for _, given in servers(overlay) if given["job"] == "ps"}
    for pod in programs(overlay):
        resolver, checkpoints = trained(pod, monkeypatch)
        assert (resolver.task_type, resolver.task_id) == ("worker", index(pod))
        cluster = resolver.cluster_spec()
        assert cluster.num_tasks("worker") == len(programs(overlay))
        # Servers that come later may be listed, too.
        known, tasks = addresses(overlay, "ps", 0), cluster.job_tasks("ps")
        assert (tasks[: len(known)], len(tasks)) == (known, tasks_of(overlay) or len(known))
        assert checkpoints == save
        assert pod.container.directory in pod.container.mounts


def tasks_of(overlay: str) -> int:
    """How many tasks servers share; 0 if there is one for each."""
    (found,) = {given["tasks"] for _, given in servers(overlay) if given["job"] == "ps"}
    return int(found)


def trained(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> tuple[ClusterResolver, Path | None]:
    """Runs the demo of a pod as far as it is set up: where it would train, and save."""
    settings: list[Any] = []

    def train(*arguments: Any) -> float:
        settings.extend(arguments)
        return 0.0

    monkeypatch.setattr(movielens, "train", train)
    monkeypatch.setattr(sys, "argv", list(pod.command[1:]))
    for name, value in pod.environment.items():
        monkeypatch.setenv(name, value)
    movielens.main()
    return settings[0], settings[-1].checkpoints


def test_the_chief_finds_servers_and_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    (chief,) = programs(COORDINATED)
    # Loaded late, since all that load tests would wait for it.
    from kubernetes.client import ApiClient, Configuration, CoreV1Api

    for name, value in chief.environment.items():
        monkeypatch.setenv(name, value)
    program = typer.Typer()
    program.command()(coordinator.main)
    given = options(program, chief.command[2:])
    with serving() as api:
        for pod in pods(COORDINATED):
            known = {"namespace": pod.namespace, "subdomain": pod.subdomain}
            api.add(pod.hostname, labels=dict(pod.labels), **known)
        settings = Configuration(host=f"http://127.0.0.1:{api.server_port}")
        found = partial(KubernetesClusterResolver, override_client=CoreV1Api(ApiClient(settings)))
        monkeypatch.setattr(coordinator, "KubernetesClusterResolver", found)
        resolver = coordinator.resolver_of(coordinator.Place(given["cluster"]))
        cluster = resolver.cluster_spec()
    assert (resolver.task_type, resolver.task_id) == ("chief", 0)
    for job in ("ps", "worker"):
        assert cluster.job_tasks(job) == addresses(COORDINATED, job, 2)
    (save,) = {one["restore"] for _, one in servers(COORDINATED) if "restore" in one}
    assert given["save"] == save


@in_each_overlay
def test_programs_have_sets_in_one_order(overlay: str) -> None:
    for pod in pods(overlay):
        runs_programs = pod.command[0] == "python" or pod.command[1] == "worker"
        assert pod.environment.get("PYTHONHASHSEED") == ("0" if runs_programs else None)


@in_each_overlay
def test_variables_of_the_product_are_those_that_it_reads(overlay: str) -> None:
    read = {TOKEN_FILE.variable}
    for app in SERVERS.values():
        for option in typer.main.get_command(app).params:
            read |= {variable(option.name)} if option.name else set()
    for pod in pods(overlay):
        own = {name for name in pod.environment if name.startswith("STRATAGEM_")}
        assert own and own <= read
        assert not [value for value in pod.environment.values() if "$(" in value]
