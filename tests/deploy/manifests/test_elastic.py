"""Workers that come and go as they are needed, and a chief that stands by."""

from __future__ import annotations

import pytest

from tests.deploy.manifests.rendering import Manifest, rendered
from tests.deploy.manifests.tasks import servers
from tests.deploy.manifests.workloads import planned

OVERLAY = "overlays/coordinator-elastic"


def one(kind: str, name: str) -> Manifest:
    """The only one of a kind and name."""
    (found,) = [
        each
        for each in rendered(OVERLAY)
        if each["kind"] == kind and each["metadata"]["name"] == name
    ]
    return found


def test_the_autoscaler_scales_the_workers_by_what_they_request() -> None:
    spec = one("HorizontalPodAutoscaler", "worker")["spec"]
    target = spec["scaleTargetRef"]
    scaled = one(target["kind"], target["name"])
    assert target["apiVersion"] == scaled["apiVersion"]
    assert spec["minReplicas"] <= scaled["spec"]["replicas"] <= spec["maxReplicas"]
    (metric,) = spec["metrics"]
    requested = scaled["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert metric["resource"]["name"] in requested


def test_a_worker_that_goes_has_time_to_finish_its_function() -> None:
    for pod, given in servers(OVERLAY):
        if pod.component == "worker":
            workload = one("StatefulSet", "worker")["spec"]["template"]["spec"]
            assert workload["terminationGracePeriodSeconds"] > given["drain_seconds"]


def test_servers_are_not_scaled() -> None:
    scaled = [
        each["spec"]["scaleTargetRef"]["name"]
        for each in rendered(OVERLAY)
        if each["kind"] == "HorizontalPodAutoscaler"
    ]
    assert scaled == ["worker"]


def test_a_second_chief_stands_by_until_one_has_come_to_its_end() -> None:
    spec = one("Job", "chief")["spec"]
    assert (spec["parallelism"], spec.get("completions")) == (2, None)
    (spread,) = spec["template"]["spec"]["topologySpreadConstraints"]
    labels = spec["template"]["metadata"]["labels"]
    assert spread["labelSelector"]["matchLabels"] == labels


@pytest.mark.parametrize("job", ["ps", "worker"])
def test_programs_ask_for_the_pods_that_there_are_at_least(job: str) -> None:
    names = {pod.name for pod in planned(rendered(OVERLAY)) if pod.name.startswith(job)}
    chief = one("Job", "chief")["spec"]["template"]["spec"]["initContainers"][0]
    (asked,) = [each["value"] for each in chief["env"] if each["name"] == "SERVERS"]
    assert {f"{name}.{job}:2223" for name in names} <= set(asked.split())


def test_reader_servers_become_more_by_what_they_request_and_have_one_address() -> None:
    manifests = {(one["kind"], one["metadata"]["name"]): one for one in rendered("overlays/serve")}
    spec = manifests["HorizontalPodAutoscaler", "reader"]["spec"]
    target = spec["scaleTargetRef"]
    scaled = manifests[target["kind"], target["name"]]["spec"]
    assert spec["minReplicas"] <= scaled["replicas"] <= spec["maxReplicas"]
    (metric,) = spec["metrics"]
    requested = scaled["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert metric["resource"]["name"] in requested
    lookups = manifests["Service", "lookups"]["spec"]
    assert lookups["selector"] == scaled["selector"]["matchLabels"]
    assert lookups.get("clusterIP") != "None"
