"""The models of Kubeflow Trainer accept JobSets and TrainJobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from tests.deploy.manifests.rendering import Manifest

MODELS: Mapping[str, str] = {
    "JobSet": "JobsetV1alpha2JobSet",
    "TrainJob": "TrainerV1alpha1TrainJob",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
}
"""The kinds that are no part of Kubernetes itself, and their models."""


def problems(manifest: Manifest) -> Iterator[str]:
    """What the controllers would refuse or ignore."""
    # Loaded late, since all that load tests would wait for it.
    from kubeflow_trainer_api import models

    model: Any = getattr(models, MODELS[manifest["kind"]])
    try:
        read = model.from_dict(manifest)
    except ValidationError as error:
        yield str(error)
    else:
        # A model leaves out what it does not know.
        yield from unknown(manifest, read.to_dict(), "$")


def unknown(given: Any, known: Any, path: str) -> Iterator[str]:
    """The fields of nested mappings and lists that others lack."""
    if isinstance(given, Mapping):
        for key, value in given.items():
            if not isinstance(known, Mapping) or key not in known:
                yield f"{path}.{key} is no field"
            else:
                yield from unknown(value, known[key], f"{path}.{key}")
    elif isinstance(given, list):
        for number, (one, other) in enumerate(zip(given, known, strict=True)):
            yield from unknown(one, other, f"{path}[{number}]")


def jobs(manifest: Manifest) -> Iterator[Manifest]:
    """The Jobs that a JobSet or a TrainingRuntime has the templates of."""
    spec = manifest["spec"]
    if manifest["kind"] == "TrainingRuntime":
        spec = spec["template"]["spec"]
    for job in spec.get("replicatedJobs", ()):
        metadata = {"name": job["name"], **job["template"].get("metadata", {})}
        kind = {"apiVersion": "batch/v1", "kind": "Job"}
        yield {**kind, "metadata": metadata, "spec": job["template"]["spec"]}
