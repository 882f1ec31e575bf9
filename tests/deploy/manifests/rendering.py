"""The manifests of Kubernetes, as `kubectl kustomize` renders them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import yaml

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/kubernetes"
OVERLAYS = (
    "base",
    *sorted(f"overlays/{path.name}" for path in (FOLDER / "overlays").iterdir()),
)
"""What can be applied, as folders below `deploy/kubernetes`."""

Manifest: TypeAlias = Mapping[str, Any]


@cache
def rendered(overlay: str) -> Sequence[Manifest]:
    """All manifests of an overlay."""
    return tuple(yaml.load_all(render(FOLDER / overlay), yaml.CSafeLoader))


def render(folder: Path) -> str:
    """What a folder with a `kustomization.yaml` comes to.

    Raises:
        ValueError: It cannot be rendered; the message says why.
    """
    kubectl = Path(sys.executable).with_name("kubectl")
    ended = subprocess.run(
        [kubectl, "kustomize", folder], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise ValueError(f"{folder}: {ended.stderr.strip()}")
    return ended.stdout
