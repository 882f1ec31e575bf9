"""Images are made of the wheels that were listed, and of no others."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "deploy/docker/Dockerfile").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def wheel(folder: Path, name: str, version: str, *needs: str) -> Path:
    """A wheel with one module, whose text is its version."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    required = "".join(f"Requires-Dist: {need}\n" for need in needs)
    texts = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
    }
    with ZipFile(path, "w") as archive:
        for file, text in texts.items():
            archive.writestr(file, text)
    return path


def hashed(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "deploy/docker/hashed.py", str(folder), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def installed(folder: Path, listed: str, target: Path) -> subprocess.CompletedProcess[str]:
    """What becomes of an installation, with the options of the Dockerfile."""
    (folder / "list.txt").write_text(listed)
    options = ["--no-deps", "--require-hashes", "--no-index", "--find-links", str(folder)]
    pip = [sys.executable, "-m", "pip", "--isolated", "install", "--target", str(target)]
    return subprocess.run(
        [*pip, *options, "--requirement", str(folder / "list.txt")],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "first", "1.0", "second")
    wheel(folder, "second", "2.0")
    return folder


def test_all_that_is_needed_is_listed_with_its_hash(wheels: Path, tmp_path: Path) -> None:
    listed = hashed(wheels, "first").stdout
    lines = listed.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["first==1.0", "second==2.0"]
    assert all(re.fullmatch(r"\S+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert hashed(wheels, "--no-deps", "first").stdout.splitlines() == lines[:1]
    ended = installed(wheels, listed, tmp_path / "image")
    assert not ended.returncode, ended.stderr
    assert (tmp_path / "image/second.py").exists()


@pytest.mark.full("pip itself compares the hashes")
def test_a_wheel_that_is_another_one_is_not_installed(wheels: Path, tmp_path: Path) -> None:
    listed = hashed(wheels, "first").stdout
    wheel(wheels, "second", "2.0", "first")
    ended = installed(wheels, listed, tmp_path / "image")
    assert "DO NOT MATCH THE HASHES" in ended.stderr
    assert not (tmp_path / "image").exists()


@pytest.mark.full("a list has all that is needed, and its hashes")
def test_a_newer_wheel_beside_is_left_alone(wheels: Path, tmp_path: Path) -> None:
    listed = hashed(wheels, "first").stdout
    wheel(wheels, "second", "3.0")
    ended = installed(wheels, listed, tmp_path / "image")
    assert not ended.returncode, ended.stderr
    assert "'2.0'" in (tmp_path / "image/second.py").read_text()


def test_a_list_that_cannot_be_complete_is_none(wheels: Path) -> None:
    (wheels / "second-2.0-py3-none-any.whl").unlink()
    ended = hashed(wheels, "first")
    assert ended.returncode
    assert not ended.stdout
    assert "second" in ended.stderr


def test_every_installation_of_an_image_takes_a_list_that_make_has_written() -> None:
    commands = re.findall(r"pip install (.*?)(?:\n\n|\n &&)", DOCKERFILE, re.DOTALL)
    assert len(commands) == 3
    for command in commands:
        assert "--no-deps --require-hashes" in command
        (file,) = re.findall(r"--requirement /wheels/(\S+)", command)
        assert f"$(WHEELS)/{file}" in MAKEFILE
