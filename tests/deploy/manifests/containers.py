"""Compose accepts its projects, and hadolint the Dockerfile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import pytest

from tests.deploy.manifests.rendering import ROOT

COMPOSE = ROOT / "deploy/compose"
DOCKER = ROOT / "deploy/docker"

needs_compose = pytest.mark.skipif(
    sys.version_info < (3, 11),
    reason="PyPI has Docker Compose for Python 3.11 and newer only",
)


def compose_files(folder: Path = COMPOSE) -> list[Path]:
    """The file of the project, and what can be laid over it."""
    return [folder / "compose.yaml", *sorted(folder.glob("compose.*.yaml"))]


def compose_combinations(files: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """The project with every choice of what is laid over it.

    What is there for two of them together, compose.one.other.yaml, is laid over both.
    """
    project, *overlays = files
    for count in range(len(overlays) + 1):
        for chosen in combinations(overlays, count):
            names = {file.name for file in chosen}
            if all(_needed(file) <= names for file in chosen):
                yield project, *chosen


def _needed(overlay: Path) -> set[str]:
    words = overlay.name.split(".")[1:-1]
    return {f"compose.{word}.yaml" for word in words} if len(words) > 1 else set()


def schema_problems(files: Sequence[Path]) -> Iterator[str]:
    """What the schema of Compose says of each file."""
    yield from complaint("check-jsonschema", "--builtin-schema", "vendor.compose-spec", *files)


def project_problems(files: Sequence[Path]) -> Iterator[str]:
    """What Compose says of files laid over each other, with all profiles."""
    chosen = [part for file in files for part in ("--file", file)]
    yield from complaint("docker-compose", *chosen, "--profile=*", "config", "--quiet")


def image_problems(dockerfile: Path = DOCKER / "Dockerfile") -> Iterator[str]:
    """What hadolint says of a Dockerfile."""
    yield from complaint("hadolint", "--no-color", "--config", DOCKER / "hadolint.yaml", dockerfile)


def complaint(tool: str, *arguments: Path | str) -> Iterator[str]:
    """What a tool of this environment prints, if it fails."""
    program = Path(sys.executable).with_name(tool)
    if not program.exists():
        yield f"{tool} is missing; what is checked by it needs Python 3.11 or newer"
        return
    ended = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if ended.returncode:
        yield f"{tool}: {(ended.stdout + ended.stderr).strip()}"
