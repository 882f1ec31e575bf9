"""What is published: the same bytes wherever they are built, and nothing that does not belong."""

from __future__ import annotations

import tarfile
import time
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.publishing.distributions import (
    PACKAGES,
    ROOT,
    Distributions,
    built,
    copy_to,
    files_of_sdist,
    files_of_wheel,
    tracked,
)

MODIFIED = 1_700_000_000  # seconds since 1970: a day in November 2023
NAME = "stratagem-0.1.0"

# What work in a clone leaves behind.
RUBBISH = (
    ".venv/lib/site-packages/torch.py",
    ".hypothesis/examples/one",
    ".mypy_cache/cache.json",
    "build/wheels/stratagem.whl",
    "client/stratagem/__pycache__/strategy.cpython-311.pyc",
    "deploy/compose/token",
    "dist/stratagem-0.0.9.tar.gz",
    "runs/movielens/loss.csv",
)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    folder = tmp_path_factory.mktemp("built")
    return built(copy_to(folder / "clone", tracked()), folder / "dist")


@pytest.fixture(scope="module")
def metadata(distributions: Distributions) -> Message:
    with ZipFile(distributions.wheel) as archive:
        return message_from_bytes(archive.read(f"{NAME}.dist-info/METADATA"))


def in_packages() -> list[str]:
    return [file for file in tracked() if file.startswith(tuple(f"{each}/" for each in PACKAGES))]


def test_a_clone_in_use_elsewhere_gives_the_same_bytes(
    distributions: Distributions, tmp_path: Path
) -> None:
    clone = copy_to(tmp_path / "somewhere" / "else", reversed(tracked()))
    for file in RUBBISH:
        (clone / file).parent.mkdir(parents=True, exist_ok=True)
        (clone / file).write_text("left behind")
    (clone / "client/stratagem/__init__.py").chmod(0o600)
    again = built(clone, tmp_path / "dist", {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"})
    assert again.sdist.read_bytes() == distributions.sdist.read_bytes()
    assert again.wheel.read_bytes() == distributions.wheel.read_bytes()


def test_files_have_the_date_that_the_environment_says(tmp_path: Path) -> None:
    clone = copy_to(tmp_path / "clone", tracked())
    sdist, wheel = built(clone, tmp_path / "dist", {"SOURCE_DATE_EPOCH": str(MODIFIED)})
    with tarfile.open(sdist) as archive:
        assert {each.mtime for each in archive.getmembers()} == {MODIFIED}
    with ZipFile(wheel) as zipped:
        dates = {each.date_time for each in zipped.infolist()}
    assert dates == {time.gmtime(MODIFIED)[:6]}


def test_a_wheel_has_the_packages_and_nothing_else(distributions: Distributions) -> None:
    packages = {file.partition("/")[2] for file in in_packages()}
    about = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    expected = packages | {f"{NAME}.dist-info/{file}" for file in about}
    assert files_of_wheel(distributions.wheel) == expected


def test_an_sdist_has_what_a_wheel_is_made_of_and_what_one_reads(
    distributions: Distributions,
) -> None:
    pages = {"CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md"}
    expected = {*in_packages(), *pages, ".gitignore", "PKG-INFO", "pyproject.toml"}
    assert files_of_sdist(distributions.sdist) == expected


def test_every_package_says_that_it_has_types(distributions: Distributions) -> None:
    typed = {file for file in files_of_wheel(distributions.wheel) if file.endswith("/py.typed")}
    assert typed == {f"{Path(package).name}/py.typed" for package in PACKAGES}


def test_the_licence_is_in_both(distributions: Distributions) -> None:
    licence = (ROOT / "LICENSE").read_bytes()
    with tarfile.open(distributions.sdist) as archive:
        packed = archive.extractfile(f"{NAME}/LICENSE")
        assert packed is not None
        assert packed.read() == licence
    with ZipFile(distributions.wheel) as zipped:
        assert zipped.read(f"{NAME}.dist-info/licenses/LICENSE") == licence


def test_the_metadata_says_what_the_package_is(metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    text = metadata.get_payload(decode=True)
    assert isinstance(text, bytes)
    assert text.decode() == (ROOT / "README.md").read_text(encoding="utf-8")
