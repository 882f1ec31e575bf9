"""What the source tree promises about itself: see CONTRIBUTING.md."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratagem._version import __version__
from stratagem_deploy.processes.process import import_path
from tests.tables import read_tables

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "proto",
    "rpc",
    "storage",
    "psserver",
    "reader",
    "client",
    "worker",
    "deploy",
    "tests",
    "examples",
    "benchmarks",
    "docs",
)
SOURCES = [
    path
    for folder in FOLDERS
    for pattern in ("*.py", "*.proto")
    for path in sorted((ROOT / folder).rglob(pattern))
    if not re.search(r"_pb2\.py$", path.name)
]

LONGEST_FUNCTION = 50  # lines, without its docstring
LONGEST_FILE = 600  # lines
LONGEST_PICTURE = 1400  # words of docs/architecture.md, 250 of them the table of what parts cost

# A name says what a file is about; these say that nobody knew.
SAYS_NOTHING = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_generated_code_is_what_the_protos_compile_to() -> None:
    finished = python("proto/compile.py", "--check")
    assert finished.returncode == 0, finished.stderr


STEPPING = """
import sys
import torch
import stratagem_psserver.server
from stratagem_proto.programs.optimizers import OPTIMIZERS
from stratagem_psserver.optimization.torch_rules import make_optimizer, take_step

for rule in OPTIMIZERS.values():
    parameter = torch.ones(2, 2)
    parameter.grad = torch.ones(2, 2)
    sparse = rule.cls is torch.optim.SparseAdam
    if sparse:
        parameter.grad = parameter.grad.to_sparse(1)
    take_step(make_optimizer(rule, {}, [parameter]), sparse)
print(*sys.modules)
"""


def test_a_parameter_server_loads_no_client_and_no_compiler() -> None:
    finished = python("-c", STEPPING)
    assert finished.returncode == 0, finished.stderr
    loaded = finished.stdout.split()
    assert "torch.optim" in loaded
    assert "stratagem" not in loaded
    assert "torch._dynamo" not in loaded


def test_the_newest_version_in_the_changelog_is_this_one() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(\d\S*)\]", changelog, flags=re.MULTILINE)
    assert versions[0] == __version__


def test_the_picture_is_read_in_a_few_minutes() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(page.split()) < LONGEST_PICTURE


def test_what_the_parts_cost_is_what_the_product_costs() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    _, _, table = page.partition("## What each part costs")
    parts = re.findall(r"^\| [^|]+ \| ([\d,]+) \|", table, flags=re.MULTILINE)
    said = sum(int(each.replace(",", "")) for each in parts)
    lines = read_tables(ROOT / "tests" / "budget.toml")["lines_of_code"]
    assert said == pytest.approx(lines, rel=0.03), "mend the lines of the parts that changed"


@pytest.mark.parametrize(
    ("page", "package"),
    [
        ("contract", "proto/stratagem_proto"),
        ("contract", "rpc/stratagem_rpc"),
        ("contract", "storage/stratagem_storage"),
        ("parameter-server", "psserver/stratagem_psserver"),
        ("reader", "reader/stratagem_reader"),
        ("client", "client/stratagem"),
        ("coordinator", "worker/stratagem_worker"),
        ("deployment", "deploy/stratagem_deploy"),
    ],
)
def test_the_page_of_a_package_names_each_of_its_folders(page: str, package: str) -> None:
    text = (ROOT / "docs" / "architecture" / f"{page}.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text, flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)(?:\.py)?`", row)}
    folders = {each.parent.name for each in (ROOT / package).glob("*/__init__.py")}
    # A small package has files alone.
    folders |= set() if folders else {each.stem for each in (ROOT / package).glob("[a-z]*.py")}
    assert folders
    assert folders - named == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_of_sources_is_looked_at(folder: str) -> None:
    assert any(path.is_relative_to(ROOT / folder) for path in SOURCES)


def test_no_function_is_too_long_to_read_at_a_glance() -> None:
    lengths = {
        f"{place(path)}:{function.lineno} {function.name}": length(function)
        for path in SOURCES
        if path.suffix == ".py"
        for function in functions(path)
    }
    assert not {name for name, lines in lengths.items() if lines > LONGEST_FUNCTION}


def test_no_file_holds_more_than_one_idea() -> None:
    lengths = {place(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert not {name for name, lines in lengths.items() if lines > LONGEST_FILE}


def test_every_file_and_folder_is_named_for_what_it_holds() -> None:
    assert not {place(path) for path in SOURCES if words(path) & SAYS_NOTHING}


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | import_path(),
        capture_output=True,
        text=True,
    )


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def words(path: Path) -> set[str]:
    """Return the names of a source file and of the folders that hold it."""
    return {part.strip("_") for part in path.relative_to(ROOT).with_suffix("").parts}


def functions(path: Path) -> Iterator[Function]:
    """Yield the functions of a file, if it is long enough for one that is too long."""
    text = path.read_text(encoding="utf-8")
    if text.count("\n") <= LONGEST_FUNCTION:
        return
    nodes: list[ast.AST] = [ast.parse(text)]
    for node in nodes:
        if isinstance(node, Function):
            yield node
        # Within expressions are no functions with a name.
        nodes += (each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr))


def length(function: Function) -> int:
    """Return the number of lines from `def` to the end, less the docstring's."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    docstring = function.body[0]
    return lines - ((docstring.end_lineno or 0) - docstring.lineno + 1)
