"""Which pods the controllers of Kubernetes make, and how they name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.deploy.manifests.rendering import Manifest

POD_INDEX = "apps.kubernetes.io/pod-index"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
TASK = "stratagem/task"
"""Our own label of pods whose number says something else."""
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"


@dataclass(frozen=True)
class Planned:
    """A pod that a controller makes.

    Attributes:
        name: Its name, without what is drawn by lot.
        namespace: Its namespace.
        subdomain: The headless service that it is known by; "" for none.
        labels: Its labels.
        annotations: Its annotations.
        spec: What the manifest says of it.
    """

    name: str
    namespace: str
    subdomain: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Manifest

    @property
    def hostname(self) -> str:
        return self.name

    @property
    def fields(self) -> dict[str, str]:
        """What its containers may take into variables, by path."""
        fields = {"metadata.name": self.name, "metadata.namespace": self.namespace}
        for kind in ("labels", "annotations"):
            entries: Mapping[str, str] = getattr(self, kind)
            for key, value in entries.items():
                fields[f"metadata.{kind}['{key}']"] = value
        return fields


def planned(manifests: Sequence[Manifest]) -> Iterator[Planned]:
    """The pods of all workloads among manifests."""
    for manifest in manifests:
        kind = manifest["kind"]
        if kind == "StatefulSet":
            yield from _of_stateful_set(manifest)
        elif kind == "Job":
            yield from _of_job(manifest)
        elif kind == "JobSet":
            yield from _of_job_set(manifest)
        elif kind == "TrainJob":
            yield from _of_job_set(_job_set(manifest, manifests))


def _of_stateful_set(manifest: Manifest) -> Iterator[Planned]:
    spec, name = manifest["spec"], manifest["metadata"]["name"]
    for index in range(spec["replicas"]):
        yield _of_template(
            f"{name}-{index}",
            manifest["metadata"]["namespace"],
            spec["template"],
            labels={POD_INDEX: str(index)},
            subdomain=spec["serviceName"],
        )


def _of_job(
    manifest: Manifest, labels: Mapping[str, str] | None = None, subdomain: str = ""
) -> Iterator[Planned]:
    metadata, spec = manifest["metadata"], manifest["spec"]
    name, namespace = metadata["name"], metadata["namespace"]
    if spec.get("completionMode") != "Indexed":
        yield _of_template(name, namespace, spec["template"])
        return
    for index in range(spec["completions"]):
        own = {COMPLETION_INDEX: str(index)}
        yield _of_template(
            f"{name}-{index}",
            namespace,
            spec["template"],
            labels={**own, **(labels or {})},
            annotations=own,
            subdomain=subdomain,
        )


def _of_job_set(manifest: Manifest) -> Iterator[Planned]:
    metadata, spec = manifest["metadata"], manifest["spec"]
    for job in spec["replicatedJobs"]:
        for number in range(job.get("replicas", 1)):
            name = f"{metadata['name']}-{job['name']}-{number}"
            one = {**metadata, "name": name}
            yield from _of_job(
                {"metadata": one, "spec": job["template"]["spec"]},
                {JOBSET_NAME: metadata["name"]},
                spec.get("network", {}).get("subdomain", metadata["name"]),
            )


def _job_set(manifest: Manifest, manifests: Sequence[Manifest]) -> Manifest:
    """The JobSet that Kubeflow Trainer makes of a TrainJob and its runtime."""
    wanted = manifest["spec"]["runtimeRef"]
    (runtime,) = (
        one
        for one in manifests
        if (one["kind"], one["metadata"]["name"]) == (wanted["kind"], wanted["name"])
    )
    trainer = manifest["spec"]["trainer"]
    spec = runtime["spec"]["template"]["spec"]
    jobs = [
        _trained(job, trainer) if job["name"] == "node" else job for job in spec["replicatedJobs"]
    ]
    return {"metadata": manifest["metadata"], "spec": {**spec, "replicatedJobs": jobs}}


def _trained(job: Manifest, trainer: Manifest) -> Manifest:
    """The job of a runtime that trains, with what a TrainJob says of it."""
    spec = job["template"]["spec"]
    template, count = spec["template"], trainer["numNodes"]
    (container,) = template["spec"]["containers"]
    container = {**container, "command": trainer["command"]}
    template = {**template, "spec": {**template["spec"], "containers": [container]}}
    spec = {**spec, "completions": count, "parallelism": count, "template": template}
    return {**job, "template": {**job["template"], "spec": spec}}


def _of_template(
    name: str,
    namespace: str,
    template: Manifest,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    subdomain: str = "",
) -> Planned:
    metadata, spec = template["metadata"], template["spec"]
    return Planned(
        name,
        namespace,
        subdomain or spec.get("subdomain", ""),
        {**metadata["labels"], **(labels or {})},
        {**metadata.get("annotations", {}), **(annotations or {})},
        spec,
    )
