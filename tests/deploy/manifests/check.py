"""Whether real tools accept what Kubernetes, Compose and Docker are given.

python -m tests.deploy.manifests.check
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.deploy.manifests import cert_manager, containers, kubeflow, kubernetes
from tests.deploy.manifests.rendering import OVERLAYS, Manifest, rendered


def problems() -> Iterator[str]:
    """Everything that is wrong."""
    distinct = {
        json.dumps(manifest): manifest for overlay in OVERLAYS for manifest in rendered(overlay)
    }
    for manifest in distinct.values():
        name = f"{manifest['kind']} {manifest['metadata']['name']}"
        yield from (f"{name}: {problem}" for problem in manifest_problems(manifest))
    files = containers.compose_files()
    yield from containers.schema_problems(files)
    for chosen in containers.compose_combinations(files):
        yield from containers.project_problems(chosen)
    yield from containers.image_problems()


def manifest_problems(manifest: Manifest) -> Iterator[str]:
    """What is wrong with one manifest, and with those that are in it."""
    if manifest["kind"] in cert_manager.SPECS:
        yield from cert_manager.problems(manifest)
        return
    known = [manifest]
    if manifest["kind"] in kubeflow.MODELS:
        yield from kubeflow.problems(manifest)
        known = list(kubeflow.jobs(manifest))
    for one in known:
        for version in (kubernetes.OLDEST, kubernetes.NEWEST):
            yield from kubernetes.problems(one, version)


if __name__ == "__main__":
    found = list(problems())
    print(*found, sep="\n", end="\n" if found else "")
    raise SystemExit(bool(found))
