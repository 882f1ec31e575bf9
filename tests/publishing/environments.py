"""Virtual environments away from the clone, and versions of what Stratagem needs for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from tests.publishing.distributions import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# The versions that `make install-test` looks for.
NAMES = ("python3.10", "python3.11", "python3.12", "python3.13", "python3.14")
_RPC = ("grpcio", "grpcio-health-checking", "grpcio-reflection")


@dataclass(frozen=True)
class Environment:
    """A virtual environment in a folder of its own, where programs run as well.

    Attributes:
        folder: The environment is in the folder `venv` of it.
    """

    folder: Path

    @classmethod
    def new(cls, python: str, folder: Path) -> Environment:
        """Make one for an interpreter."""
        made = cls(folder)
        subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True)
        return made

    def install(self, *requirements: str) -> None:
        """Install packages as a user does."""
        self.run("python", "-m", "pip", "install", "--quiet", *requirements)

    @property
    def python_version(self) -> str:
        """The version of Python, such as "3.10"."""
        code = "import sys; print('{}.{}'.format(*sys.version_info))"
        return self.run("python", "-c", code).strip()

    def versions(self, *packages: str) -> str:
        """Return the versions of packages, for a person to read."""
        code = "import sys; from importlib.metadata import version as of; " + (
            "print(sys.version.split()[0], *(f'{each} {of(each)}' for each in sys.argv[1:]))"
        )
        return self.run("python", "-c", code, *packages).strip()

    def run(self, program: str, *arguments: str) -> str:
        """Run a program of the environment in its folder; return what it prints.

        Raises:
            AssertionError: It failed; the message is what it printed.
        """
        ended = subprocess.run(
            [str(self.folder / "venv" / "bin" / program), *arguments],
            cwd=self.folder,
            env=_without_clone(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert not ended.returncode, f"{program} {' '.join(arguments)}\n{ended.stdout}"
        return ended.stdout


def interpreters() -> list[str]:
    """Return the interpreters that PYTHONS names, or else those of `NAMES` that run here."""
    named = os.environ.get("PYTHONS", "").split()
    return named or [name for name in NAMES if _runs(name)]


def oldest(python_version: str) -> Iterator[str]:
    """Yield the oldest version that is allowed of each package, except of PyTorch."""
    for requirement in _requirements(python_version):
        for bound in requirement.specifier:
            if bound.operator == ">=" and requirement.name != "torch":
                yield f"{requirement.name}=={bound.version}"


def newest(python_version: str) -> Iterator[str]:
    """Yield what makes pip upgrade all that Stratagem needs, except PyTorch."""
    yield from ("--upgrade", "--upgrade-strategy=eager")
    for requirement in _requirements(python_version):
        if requirement.name != "torch":
            yield f"{requirement.name}{requirement.specifier}"


def with_protobuf(major: int) -> Iterator[str]:
    """Yield what makes pip install the newest of a major version, and gRPC packages that fit."""
    yield "--upgrade"
    yield f"protobuf>={major},<{major + 1}"
    yield from _RPC


def _requirements(python_version: str) -> Iterator[Requirement]:
    known = {"python_version": python_version}
    with (ROOT / "pyproject.toml").open("rb") as file:
        for text in tomllib.load(file)["project"]["dependencies"]:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate(known):
                yield requirement


def _runs(name: str) -> bool:
    """Whether there is such an interpreter; a launcher of one that is not installed fails."""
    if shutil.which(name) is None:
        return False
    line = [name, "-c", "import venv"]
    return not subprocess.run(line, stderr=subprocess.DEVNULL, check=False).returncode


def _without_clone() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
