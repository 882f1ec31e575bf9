"""The services of the Compose project find each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from stratagem_proto.replica_addresses import replica_addresses
from tests.deploy.manifests.containers import COMPOSE, compose_files, needs_compose
from tests.deploy.manifests.rendering import ROOT
from tests.deploy.manifests.tasks import port, settings

pytestmark = needs_compose

PROMETHEUS = ROOT / "deploy/observability/prometheus.yml"

Service = Mapping[str, Any]


@cache
def services() -> Mapping[str, Service]:
    """All that there are, with everything laid over the project, by their names."""
    files = [part for file in compose_files() for part in ("--file", str(file))]
    command = [*files, "--profile=*", "config", "--format=json"]
    rendered = subprocess.run(
        [Path(sys.executable).with_name("docker-compose"), *command],
        check=True,
        capture_output=True,
    )
    found: Mapping[str, Service] = json.loads(rendered.stdout)["services"]
    return found


def given(service: Service) -> Mapping[str, Any]:
    """The settings of a server, by its options and its variables."""
    own = service["environment"].items()
    variables = {name: text for name, text in own if name.startswith("STRATAGEM_")}
    with patch.dict(os.environ, variables):
        return settings(service["command"][0], service["command"][1:])


def told(service: Service) -> Any:
    """The cluster, as a program knows it."""
    return json.loads(service["environment"]["TF_CONFIG"])


SERVERS = ("ps-0", "ps-1", "ps-0-replica-1", "ps-1-replica-1")
PROGRAMS = ("worker-0", "worker-1", "chief")


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_know_servers_and_wait_for_them(program: str) -> None:
    service = services()[program]
    cluster, task = told(service)["cluster"], told(service)["task"]
    for job in ("ps", "worker"):
        for index, address in enumerate(cluster[job]):
            for replica, each in enumerate(replica_addresses(job, address)):
                if port(each) != 0:
                    knows(service, each, (job, index, replica))
    assert cluster[task["type"]][task["index"]] == f"{program}:0"


def knows(program: Service, address: str, task: tuple[str, int, int]) -> None:
    """Requires that a program waits for a server which is that task."""
    name = address.partition(":")[0]
    assert program["depends_on"][name]["condition"] == "service_healthy"
    server = services()[name]
    settings = given(server)
    assert (server["command"][0], settings["task"], settings.get("replica", 0)) == task
    assert port(settings["bind"]) == port(address)
    assert settings["health_bind"] in server["healthcheck"]["test"]


def replicas() -> Mapping[str, Service]:
    """The services of all replicas by their addresses."""
    addresses = (address for address in told(services()["chief"])["cluster"]["ps"])
    found = [each for address in addresses for each in replica_addresses("ps", address)]
    return {address: services()[address.partition(":")[0]] for address in found}


def test_replicas_have_one_arbiter_and_addresses_and_disks_of_their_own() -> None:
    disks = set()
    for address, service in replicas().items():
        settings = given(service)
        assert (settings["replicas"], settings["advertise"]) == (2, address)
        assert (settings["arbiter"], settings["durability"]) == ("file:/arbiter", "log")
        volumes = {volume["target"]: volume["source"] for volume in service["volumes"]}
        assert volumes["/arbiter"] == "arbiter"
        disks.add(volumes["/state"])
    assert len(disks) == len(replicas()) == 4


def test_who_writes_no_checkpoint_cannot() -> None:
    writable = {
        name
        for name, service in services().items()
        for volume in service.get("volumes", ())
        if volume["target"] == "/checkpoints" and not volume.get("read_only")
    }
    assert writable == {*SERVERS, "worker-0", "chief"}
    for name in SERVERS:
        assert str(given(services()[name])["checkpoint_root"]) == "/checkpoints"


def test_who_writes_or_restores_checkpoints_has_their_key() -> None:
    for name in (*SERVERS, *PROGRAMS):
        own = services()[name]["environment"]
        assert own["STRATAGEM_CHECKPOINT_KEY_FILE"] == own["STRATAGEM_TOKEN_FILE"]


def test_programs_have_sets_in_one_order() -> None:
    for name in (*PROGRAMS, "worker-server-0", "worker-server-1"):
        assert services()[name]["environment"]["PYTHONHASHSEED"] == "0"


def test_by_itself_the_project_has_no_coordinator() -> None:
    profiles = {name: service.get("profiles") for name, service in services().items()}
    coordinated = {name for name, chosen in profiles.items() if chosen and "serve" not in chosen}
    assert coordinated == {"worker-server-0", "worker-server-1", "chief"}


def test_prometheus_asks_where_servers_answer() -> None:
    (job,) = yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]
    (targets,) = (static["targets"] for static in job["static_configs"])
    (looked_up,) = job["dns_sd_configs"]
    targets += [f"{name}:{looked_up['port']}" for name in looked_up["names"]]
    answering = {
        f"{name}:{port(given(service)['metrics_bind'])}"
        for name, service in services().items()
        if service["command"] and given(service).get("metrics_bind")
    }
    assert set(targets) == answering
    shared = set(services()["prometheus"]["networks"]) & set(services()["ps-0"]["networks"])
    assert shared == {"cluster"}


def test_what_containers_mount_is_there() -> None:
    mounted = [
        Path(volume["source"])
        for service in services().values()
        for volume in service.get("volumes", ())
        if volume["type"] == "bind"
    ]
    # Certificates are made before the project is started.
    made = COMPOSE / "certs"
    assert mounted
    assert all(source.exists() or source.is_relative_to(made) for source in mounted)
    assert all(source.is_relative_to(COMPOSE.parent) for source in mounted)
