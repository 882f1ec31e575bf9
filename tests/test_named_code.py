"""The files, classes and functions that pages name exist."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.utils import data

from tests.pages import PAGES, ROOT, code_spans, title

FOLDERS = ("proto", "rpc", "storage", "psserver", "reader", "client", "worker", "deploy")
OTHERS = (".ci", "tests", "benchmarks", "examples", "docs")
# A checkpoint's files, images and measurements: the page says what makes them.
MADE_LATER = {
    "build/docs/site",
    "build/sbom/stratagem.cdx.json",
    "build/wheels",
    "deploy/compose/certs",
    "deploy/compose/token",
    "runs/benchmarks",
}
# Kubernetes's, Keras', MMEngine's, Typer's, torch's, torchmetrics' and an imagined module's; the
# page says whose they are.
OF_OTHERS = {
    "ReadWriteMany",
    "ReduceLROnPlateau",
    "BackupAndRestore",
    "BatchNormalization",
    "EarlyStopping",
    "LearningRateSchedule",
    "LossScaleOptimizer",
    "ModelCheckpoint",
    "TensorBoard",
    "TerminateOnNaN",
    "CliRunner",
    "DistributedModelParallel",
    "EmbeddingBagConfig",
    "EmbeddingConfig",
    "JaggedTensor",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "NeighborLoader",
    "NodeLoader",
    "GradScaler",
    "OptimWrapper",
    "TensorBase",
    "MeanAveragePrecision",
    "MetricCollection",
    "MyModule",
}
ABOUT_THE_CODE = [
    page for page in PAGES if "architecture" in title(page) or page.name == "CONTRIBUTING.md"
]

PATH = re.compile(r"[\w.-]+(/[\w.-]+)+/?|[\w-]+\.(py|proto)")
CLASS = re.compile(r"\b[A-Z][a-z0-9]+(?:[A-Z]\w*)+\b")


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_the_files_and_folders_that_a_page_names_are_there(page: Path) -> None:
    named = {span.rstrip("/") for span in code_spans(page) if PATH.fullmatch(span)}
    missing = named - MADE_LATER - ends_of_paths()
    assert not missing


@pytest.mark.parametrize("page", ABOUT_THE_CODE, ids=title)
def test_a_file_without_its_folder_is_in_a_folder_that_the_page_names(page: Path) -> None:
    """Else it may have moved, and the name has found a file of somewhere else."""
    spans = " ".join(code_spans(page))
    files = {span for span in code_spans(page) if re.fullmatch(r"[\w-]+\.(py|proto)", span)}
    folders = {name: {path.parent.name for path in paths() if path.name == name} for name in files}
    lost = {name for name, found in folders.items() if not any(each in spans for each in found)}
    assert not lost, f"say where {lost} are"


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_the_classes_that_a_page_names_are_there(page: Path) -> None:
    named = {name for span in code_spans(page) for name in CLASS.findall(span)}
    unknown = named - OF_OTHERS - classes()
    assert not {name for name in unknown if not is_of_torch_or_python(name)}


@pytest.mark.parametrize("page", ABOUT_THE_CODE, ids=title)
def test_every_name_on_a_page_about_the_code_is_in_the_code(page: Path) -> None:
    spans = [span for span in code_spans(page) if not span.startswith("make ")]
    named = {name for span in spans for name in re.findall(r"[A-Za-z_]\w+", span)}
    unknown = named - OF_OTHERS - words()
    assert not unknown


@cache
def paths() -> list[Path]:
    found = [path for name in (*FOLDERS, *OTHERS) for path in (ROOT / name).rglob("*")]
    return [
        *ROOT.iterdir(),
        *(path for path in found if "__pycache__" not in str(path)),
    ]


@cache
def ends_of_paths() -> set[str]:
    """Return the paths of the tree, also without the folders that they begin with."""
    parts = [path.relative_to(ROOT).parts for path in paths()]
    return {"/".join(each[start:]) for each in parts for start in range(len(each))}


def sources(*suffixes: str) -> Iterator[str]:
    """Return the text of the sources, generated ones left out."""
    for path in paths():
        if path.suffix in suffixes and "_pb2" not in path.name:
            yield path.read_text(encoding="utf-8")


@cache
def classes() -> set[str]:
    """Return what classes are called here: by definition, assignment or message."""
    messages = re.compile(r"\b(?:message|enum|rpc|service) (\w+)")
    made = re.compile(r"^\s*(?:class )?([A-Z]\w+)(?:\(.*|: .*| = .*|:)$", re.MULTILINE)
    found = {name for text in sources(".proto") for name in messages.findall(text)}
    return found.union(*map(made.findall, sources(".py")))


def is_of_torch_or_python(name: str) -> bool:
    places = (builtins, torch, torch.nn, torch.nn.parallel, torch.optim, data)
    return any(hasattr(place, name) for place in places)


@cache
def words() -> set[str]:
    """Return every word of the sources, and of the names of files."""
    texts = sources(".py", ".proto", ".toml", ".yaml")
    found = {word for text in texts for word in re.findall(r"\w+", text)}
    return found | {word for path in paths() for word in re.findall(r"\w+", path.name)}
