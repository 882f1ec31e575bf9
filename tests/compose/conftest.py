"""A Docker engine, and the images and the project that tests run on it."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.compose.project import Project

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "deploy/docker/engine.sh"
COMPOSE = ROOT / "deploy/compose"
FOLDER = ROOT / "build/engine"
BASE = "stratagem-base"


@pytest.fixture(scope="session")
def engine() -> Iterator[Mapping[str, str]]:
    """The environment in which Docker's clients reach an engine."""
    answer = subprocess.run([ENGINE, "up", FOLDER], stdout=subprocess.PIPE, text=True, check=True)
    words = shlex.split(answer.stdout.replace("export ", " "))
    found = dict(word.split("=", 1) for word in words)
    yield os.environ | found
    subprocess.run([ENGINE, "down", FOLDER], check=True)


@pytest.fixture(scope="session")
def images(engine: Mapping[str, str]) -> None:
    """The images of this tree, of a base that no registry is needed for."""
    subprocess.run([ENGINE, "base", FOLDER, BASE], env=engine, check=True)
    settings = [f"DOCKER={engine['DOCKER']}", f"BASE_IMAGE={BASE}"]
    command = ["make", "--no-print-directory", "images", *settings]
    subprocess.run(command, cwd=ROOT, env=engine, check=True)


@pytest.fixture
def project(engine: Mapping[str, str], images: None) -> Iterator[Project]:
    """The project of `compose.yaml`, not started; nothing of it is left."""
    with _removed(engine) as project:
        yield project


@pytest.fixture
def durable_project(engine: Mapping[str, str], images: None) -> Iterator[Project]:
    """As `project`, with servers that keep a log."""
    with _removed(engine, "durability") as project:
        yield project


@pytest.fixture
def resuming_project(engine: Mapping[str, str], images: None) -> Iterator[Project]:
    """As `durable_project`, with the program to copy."""
    with _removed(engine, "durability", "resuming") as project:
        yield project


@pytest.fixture
def served_project(engine: Mapping[str, str], images: None) -> Iterator[Project]:
    """As `project`, with reader servers."""
    with _removed(engine, "serve") as project:
        yield project


@pytest.fixture
def encrypted_project(engine: Mapping[str, str], images: None) -> Iterator[Project]:
    """As `project`, with tasks that know each other by certificates."""
    subprocess.run(["make", "--no-print-directory", "certs"], cwd=ROOT, check=True)
    with _removed(engine, "tls") as project:
        yield project


@pytest.fixture(params=["replicas", "replicas durability replicas.durability"])
def replicated_project(
    engine: Mapping[str, str], images: None, request: pytest.FixtureRequest
) -> Iterator[Project]:
    """As `project`, with servers that have a backup; with a log, too, and without."""
    with _removed(engine, *request.param.split()) as project:
        yield project


@contextmanager
def _removed(engine: Mapping[str, str], *overlays: str) -> Iterator[Project]:
    names = ("compose.yaml", *(f"compose.{overlay}.yaml" for overlay in overlays))
    project = Project([COMPOSE / name for name in names], engine)
    project.down()
    yield project
    project.down()
