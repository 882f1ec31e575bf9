"""A wheel that is installed away from the clone trains, with old and new versions of what it needs.

`make install-test` runs these tests with each interpreter that it finds, or those of PYTHONS. They
need an index of packages. docs/releasing.md lists what was tried.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.publishing.distributions import ROOT, built, copy_to, tracked
from tests.publishing.environments import (
    Environment,
    interpreters,
    newest,
    oldest,
    with_protobuf,
)

pytestmark = pytest.mark.install

# What is installed one after the other in the same environment, by the version of its Python.
COMBINATIONS: dict[str, Callable[[str], Iterable[str]]] = {
    "first": lambda _: (),
    "oldest": oldest,
    "protobuf 5": lambda _: with_protobuf(5),
    "protobuf 6": lambda _: with_protobuf(6),
    "protobuf 7": lambda _: with_protobuf(7),
    "newest": newest,
}
SHOWN = ("torch", "grpcio", "grpcio-health-checking", "protobuf", "numpy", "typer")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    return built(copy_to(folder / "clone", tracked()), folder / "dist").wheel


@pytest.fixture(scope="module")
def torch() -> str:
    """The PyTorch that TORCH asks for, or else that of the clone."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (pinned,) = (line for line in lines if line.startswith("torch=="))
    return os.environ.get("TORCH") or pinned


@pytest.fixture(scope="module", params=interpreters())
def environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, torch: str
) -> Iterator[Environment]:
    made = Environment.new(request.param, tmp_path_factory.mktemp("away"))
    shutil.copy(ROOT / "tests" / "publishing" / "first_steps.py", made.folder)
    made.install(torch)
    yield made
    shutil.rmtree(made.folder)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("combination", COMBINATIONS)
def test_an_installed_wheel_trains(
    environment: Environment, wheel: Path, torch: str, combination: str
) -> None:
    further = COMBINATIONS[combination](environment.python_version)
    environment.install(f"stratagem @ {wheel.as_uri()}", torch, *further)
    print(f"\n{combination}: {environment.versions(*SHOWN)}", flush=True)
    trains(environment)


def trains(environment: Environment) -> None:
    """See that an environment has the wheel, trains with it, and verifies what it saves."""
    place = environment.run("python", "-c", "import stratagem; print(stratagem.__file__)")
    assert place.startswith(str(environment.folder))
    assert environment.run("python", "first_steps.py").splitlines()[-1] == "trained True"
    script = ("run", "--ps", "2", "--workers", "2", "first_steps.py", "saved")
    assert "trained True" in environment.run("stratagem", *script).splitlines()
    assert "weight" in environment.run("stratagem", "checkpoint", "inspect", "saved")
    assert "intact" in environment.run("stratagem", "checkpoint", "verify", "saved")
