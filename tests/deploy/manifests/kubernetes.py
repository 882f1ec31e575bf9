"""The schemas of Kubernetes accept the manifests."""

from __future__ import annotations

from collections.abc import Iterator

from tests.deploy.manifests.rendering import Manifest

OLDEST, NEWEST = "1.31", "1.37"
"""The versions of Kubernetes that the manifests are for."""


def problems(manifest: Manifest, version: str) -> Iterator[str]:
    """What an API server would refuse or ignore; one thing at most.

    Args:
        manifest: Of a kind that Kubernetes itself has.
        version: The API server's, as in "1.31".
    """
    # Loaded late, since all that load tests would wait for it.
    import kubernetes_validate

    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        yield f"Kubernetes {version}: {error.json_path}: {error.message}"
