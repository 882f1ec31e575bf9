"""`make check` sees what is misspelt in any kind of manifest."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import containers, kubernetes
from tests.deploy.manifests.check import manifest_problems
from tests.deploy.manifests.rendering import FOLDER, OVERLAYS, Manifest, render, rendered
from tests.full import a_few

MISSPELT = {
    "Certificate": "spec.uris",
    "ConfigMap": "data",
    "Deployment": "spec.template.spec.containers.0.readinessProbe.httpGet",
    "HorizontalPodAutoscaler": "spec.scaleTargetRef",
    "Issuer": "spec.selfSigned",
    "Job": "spec.template.spec.containers.0.workingDir",
    "JobSet": "spec.replicatedJobs.1.dependsOn",
    "Namespace": "metadata.labels",
    "NetworkPolicy": "spec.podSelector.matchLabels",
    "PersistentVolumeClaim": "spec.accessModes",
    "PodDisruptionBudget": "spec.maxUnavailable",
    "Role": "rules.0.verbs",
    "RoleBinding": "subjects.0.name",
    "Service": "spec.publishNotReadyAddresses",
    "ServiceAccount": "metadata.name",
    "StatefulSet": "spec.template.spec.containers.0.livenessProbe.grpc",
    "TrainJob": "spec.trainer.numNodes",
    "TrainingRuntime": "spec.template.spec.replicatedJobs.0.template.spec.completions",
}
"""A field of each kind."""


def manifests() -> dict[str, Manifest]:
    """One of each kind."""
    return {manifest["kind"]: manifest for overlay in OVERLAYS for manifest in rendered(overlay)}


@pytest.mark.full("each kind is misspelt by the test below")
def test_a_field_of_each_kind_is_misspelt_here() -> None:
    assert manifests().keys() == MISSPELT.keys()


@a_few("kind", MISSPELT, "schemas of all kinds are looked up in one way", 6)
def test_a_misspelt_field_of_a_manifest_is_found(kind: str) -> None:
    manifest: Any = copy.deepcopy(manifests()[kind])
    *path, field = MISSPELT[kind].split(".")
    place = manifest
    for step in path:
        place = place[int(step) if step.isdigit() else step]
    wrong = field[:-1]
    place[wrong] = place.pop(field)
    assert wrong in "".join(manifest_problems(manifest))


def test_what_a_job_of_a_jobset_lacks_is_found() -> None:
    jobset: Any = copy.deepcopy(manifests()["JobSet"])
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    del pod["containers"]
    assert "'containers' is a required" in "".join(manifest_problems(jobset))


def test_a_field_that_only_newer_versions_have_is_found() -> None:
    service: Any = copy.deepcopy(manifests()["StatefulSet"])
    container = service["spec"]["template"]["spec"]["containers"][0]
    container["livenessProbe"]["grpc"]["mode"] = "TLS"
    assert list(kubernetes.problems(service, kubernetes.OLDEST))
    assert not list(kubernetes.problems(service, kubernetes.NEWEST))


def test_a_misspelt_field_of_a_kustomization_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "servers"
    shutil.copytree(FOLDER / "servers", folder)
    file = folder / "kustomization.yaml"
    file.write_text(file.read_text().replace("resources", "resource"))
    with pytest.raises(ValueError, match='unknown field "resource"'):
        render(folder)


@containers.needs_compose
def test_a_misspelt_field_of_a_compose_file_is_found(tmp_path: Path) -> None:
    shutil.copytree(containers.COMPOSE, tmp_path, dirs_exist_ok=True)
    files = containers.compose_files(tmp_path)
    files[0].write_text(files[0].read_text().replace("read_only:", "readonly:"))
    assert "readonly" in "".join(containers.schema_problems(files[:1]))
    assert "readonly" in "".join(containers.project_problems(files[:1]))


@containers.needs_compose
def test_a_service_that_there_is_not_is_found(tmp_path: Path) -> None:
    shutil.copytree(containers.COMPOSE, tmp_path, dirs_exist_ok=True)
    files = containers.compose_files(tmp_path)
    files[0].write_text(files[0].read_text().replace("ps-1:\n", "ps-2:\n"))
    assert "ps-1" in "".join(containers.project_problems(files[:1]))


def test_a_misspelt_instruction_of_a_dockerfile_is_found(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    lines = (containers.DOCKER / "Dockerfile").read_text().splitlines()
    number = lines.index("STOPSIGNAL SIGTERM")
    lines[number] = "STOPSIGNALS SIGTERM"
    file.write_text("\n".join(lines))
    assert f"Dockerfile:{number + 1}:" in "".join(containers.image_problems(file))


def test_each_choice_of_compose_files_is_looked_at() -> None:
    project, *overlays = (Path(name) for name in ("compose", "gpu", "figures"))
    assert list(containers.compose_combinations([project, *overlays])) == [
        (project,),
        (project, overlays[0]),
        (project, overlays[1]),
        (project, *overlays),
    ]


def test_what_is_for_two_compose_files_is_laid_over_both() -> None:
    names = ("compose.yaml", "compose.log.yaml", "compose.two.log.yaml", "compose.two.yaml")
    project, *_ = files = [Path(name) for name in names]
    log, both, two = files[1:]
    assert list(containers.compose_combinations(files)) == [
        (project,),
        (project, log),
        (project, two),
        (project, log, two),
        (project, log, both, two),
    ]
