"""Pods have what they need, and reach nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

from stratagem_proto.secret_files import CHECKPOINT_KEY_FILE, TOKEN_FILE
from tests.deploy.manifests.networks import reaches
from tests.deploy.manifests.pods import Pod, pods
from tests.deploy.manifests.rendering import OVERLAYS
from tests.deploy.manifests.tasks import COORDINATED, of_kind, programs, selects, servers
from tests.full import a_few

in_each_overlay = a_few("overlay", OVERLAYS, "`make lint` validates all overlays", 4)


@in_each_overlay
def test_the_token_is_a_file_of_a_secret_that_is_not_here(overlay: str) -> None:
    assert not of_kind(overlay, "Secret")
    for pod in pods(overlay):
        path = PurePosixPath(pod.environment[TOKEN_FILE.variable])
        volume = pod.container.mounts[str(path.parent)]
        (secret,) = (one["secret"] for one in pod.spec["volumes"] if one["name"] == volume)
        assert (secret["secretName"], path.name) == ("token", "token")


@in_each_overlay
def test_pods_can_write_volumes_only_and_become_nobody_else(overlay: str) -> None:
    for pod in pods(overlay):
        assert pod.spec["securityContext"]["runAsNonRoot"]
        for container in (*pod.first, pod.container):
            assert container.manifest["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "/tmp" in container.mounts


@in_each_overlay
def test_servers_write_checkpoints_to_their_volume_only(overlay: str) -> None:
    for pod, given in servers(overlay):
        if pod.component == "ps":
            root = given["checkpoint_root"]
            assert str(root) in pod.container.mounts
            assert given["restore"].is_relative_to(root)
        else:
            assert "training" not in pod.container.mounts.values()


@in_each_overlay
def test_who_writes_or_restores_checkpoints_has_their_key(overlay: str) -> None:
    for pod in pods(overlay):
        has_key = pod.environment.get(CHECKPOINT_KEY_FILE.variable) in pod.environment.values()
        assert has_key == ("training" in pod.container.mounts.values()), pod.name


@in_each_overlay
def test_the_network_lets_who_trains_reach_servers_and_nobody_else(overlay: str) -> None:
    serving = [pod for pod, _ in servers(overlay)]
    for server in serving:
        ports = [port for name, port in server.ports.items() if name != "metrics"]
        for port in ports:
            for program in programs(overlay):
                assert reaches(overlay, program, server, port), (program.name, server.name)
            assert not reaches(overlay, stranger(server), server, port)
    for pod in pods(overlay):
        assert not reaches(overlay, pod, stranger(pod), 2222)


def stranger(pod: Pod) -> Pod:
    """Another pod of the namespace, which is of no cluster."""
    return replace(pod, name="stranger", labels={"app.kubernetes.io/name": "stranger"})


@in_each_overlay
def test_headless_services_know_the_pods_that_are_named_by_them(overlay: str) -> None:
    for name, service in of_kind(overlay, "Service").items():
        if service["spec"].get("clusterIP") != "None":
            continue
        chosen = {"matchLabels": service["spec"]["selector"]}
        named = [pod for pod in pods(overlay) if pod.subdomain == name]
        assert named == [pod for pod in pods(overlay) if selects(chosen, pod)]
        assert named
        ports = {entry["name"]: entry["port"] for entry in service["spec"]["ports"]}
        assert all(ports.items() <= pod.ports.items() for pod in named)
    for budget in of_kind(overlay, "PodDisruptionBudget").values():
        kept = [pod for pod in pods(overlay) if selects(budget["spec"]["selector"], pod)]
        assert {pod.component for pod in kept} == {"ps"}


def test_the_chief_may_list_pods_and_nothing_else() -> None:
    (role,) = of_kind(COORDINATED, "Role").values()
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    for pod in pods(COORDINATED):
        asks = pod.component == "chief"
        assert pod.spec.get("automountServiceAccountToken", True) is asks
        assert (pod.spec.get("serviceAccountName") == role["metadata"]["name"]) is asks
