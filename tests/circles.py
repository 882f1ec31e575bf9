"""Which folders and files import each other in circles.

Run as `python -m tests.circles`; imports in functions and for types alone count. A folder in a
circle cannot be read, moved or tested without the others, so none may be in one. A few files may,
where one thing is said in two or three of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import grimp
import networkx as nx

_PACKAGES = (
    "stratagem",
    "stratagem_psserver",
    "stratagem_reader",
    "stratagem_worker",
    "stratagem_deploy",
    "stratagem_proto",
    "stratagem_rpc",
    "stratagem_storage",
)

_MOST_FILES = 3


def main() -> None:
    """Print the circles that there should not be; exit with 1 if there are any."""
    found = [line for package in _PACKAGES for line in _circles(package)]
    for line in found:
        print(line)
    sys.exit(bool(found))


def _circles(package: str) -> Iterator[str]:
    graph = grimp.build_graph(package)
    imports = [
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    ]
    for circle in _within(imports):
        if len(circle) > _MOST_FILES:
            yield f"files: {' '.join(circle)}"
    for parent in sorted(graph.modules):
        children = graph.find_children(parent)
        folders = {child for child in children if graph.find_children(child)}
        for circle in _within(_among(imports, children)):
            if folders & {*circle}:
                yield f"folders: {' '.join(circle)}"


def _among(
    imports: Iterable[tuple[str, str]], children: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Yield what some siblings import of each other, with all that is in them."""
    siblings = {*children}
    for importer, imported in imports:
        ends = _lineage(importer) & siblings, _lineage(imported) & siblings
        if all(ends) and ends[0] != ends[1]:
            yield ends[0].pop(), ends[1].pop()


def _lineage(module: str) -> set[str]:
    parts = module.split(".")
    return {".".join(parts[:size]) for size in range(1, len(parts) + 1)}


def _within(imports: Iterable[tuple[str, str]]) -> Iterator[list[str]]:
    for component in nx.strongly_connected_components(nx.DiGraph(imports)):
        if len(component) > 1:
            yield sorted(component)


if __name__ == "__main__":
    main()
