"""A Docker engine, and the images and the project that tests run on it."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.compose.project import Project

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "deploy/docker/engine.sh"
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
    project = Project(ROOT / "deploy/compose/compose.yaml", engine)
    project.down()
    yield project
    project.down()
