"""`python -m tests.budget`: how large the product is, and how much a step passes through.

Prints each figure beside its budget in budget.toml, and fails if one is beyond it. Whoever needs
more raises the budget in the same commit, and says there why; whoever gets along with less lowers
it.
"""

from __future__ import annotations

import ast
import io
import sys
import threading
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from tests.tables import read_tables

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("proto", "rpc", "storage", "psserver", "reader", "client", "worker", "deploy")
GENERATED = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")

# The first steps make what later ones use again.
_STEPS = 12

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def figures() -> Mapping[str, int]:
    """What budget.toml has a budget of."""
    files = list(_files())
    written = [path for path in files if not path.name.endswith(GENERATED)]
    generated = [path for path in files if path.name.endswith(GENERATED)]
    return {
        "files": len(written),
        "lines_of_code": sum(map(lines_of_code, written)),
        "generated_lines": sum(len(path.read_text().splitlines()) for path in generated),
        "calls_of_a_step": calls_of_a_step(),
    }


def _files() -> Iterator[Path]:
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py*"):
            if path.suffix in (".py", ".pyi"):
                yield path


def lines_of_code(path: Path) -> int:
    """How many lines of a file have code, which docstrings and comments are not."""
    text = path.read_text()
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {
        line
        for token in tokens
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - docstrings)


def calls_of_a_step() -> int:
    """How many functions of the product a run with a step calls, on a worker and its server."""
    # What is imported is not to be counted.
    import torch

    import stratagem
    from stratagem.cluster_resolver import ClusterResolver
    from stratagem_deploy import LocalCluster

    counted: list[int] = []

    def train(resolver: ClusterResolver) -> None:
        strategy = stratagem.ParameterServerStrategy(resolver)
        with strategy.scope():
            model = torch.nn.Linear(3, 1)
        optimizer = stratagem.DistributedOptimizer(torch.optim.Adam(model.parameters()))
        features = torch.ones(8, 3)

        def step() -> None:
            optimizer.zero_grad()
            model(features).square().mean().backward()
            optimizer.step()

        for _ in range(_STEPS):
            calls.clear()
            strategy.run(step)
            counted.append(len(calls))

    calls: list[None] = []
    folders = tuple(f"{ROOT / each}/" for each in PRODUCT)

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        is_named = not code.co_name.startswith("<")
        if event == "call" and is_named and code.co_filename.startswith(folders):
            calls.append(None)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        with LocalCluster(ps=1, workers=1, processes=False) as cluster:
            cluster.run(train)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    # Heartbeats come in between.
    return min(counted)


def main() -> None:
    """Print the figures, and exit with 1 if one is beyond its budget."""
    budget = read_tables(ROOT / "tests" / "budget.toml")
    table, beyond = Table("", "now", "budget"), []
    for name, figure in figures().items():
        table.add_row(name.replace("_", " "), f"{figure:,}", f"{budget[name]:,}")
        if figure > budget[name]:
            beyond.append(name)
    Console().print(table)
    if beyond:
        raise SystemExit(
            f"beyond the budget: {', '.join(beyond)}. Take something away, or raise the budget in "
            "tests/budget.toml and say there why"
        )


if __name__ == "__main__":
    main()
