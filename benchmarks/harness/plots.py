"""Pictures of what a measurement found."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib import colormaps, figure
from matplotlib.axes import Axes

from benchmarks.harness.figures import Figure

_DIRECTIONS = ("push + SGD", "pull", "push + SGD + pull")
_SIZED = re.compile(r"(?P<direction>.+) (?P<megabytes>[\d.]+) MB")
_WORKERS = re.compile(r"(\d+) workers?")

Points: TypeAlias = Mapping[str, Sequence[tuple[float, float]]]


def plot(name: str, figures: Sequence[Figure], folder: Path) -> None:
    """Write `<name>.png` into a folder, if there is a picture of that measurement."""
    if name in _PICTURES:
        picture = _PICTURES[name](figures)
        picture.savefig(folder / f"{name}.png", dpi=150)


def _throughput(figures: Sequence[Figure]) -> figure.Figure:
    """Throughput against size, for either direction and for both."""
    picture = figure.Figure(figsize=(14, 4.5), layout="constrained")
    all_axes = picture.subplots(1, len(_DIRECTIONS), sharey=True)
    names = dict.fromkeys(found.cell.contestant for found in figures)
    colors = {name: colormaps["tab20"](place) for place, name in enumerate(names)}
    for axes, direction in zip(all_axes, _DIRECTIONS, strict=True):
        for name, line in _rates(figures, direction).items():
            _draw(axes, line, label=name, color=colors[name])
        axes.set(title=direction, xlabel="MB", xscale="log", yscale="log")
    all_axes[0].set(ylabel="GB/s")
    legend = {line.get_label(): line for axes in all_axes for line in axes.lines}
    picture.legend(legend.values(), legend.keys(), loc="outside right upper")
    return picture


def _rates(figures: Sequence[Figure], direction: str) -> Points:
    """GB/s by MB, of each contestant."""
    points: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for found in figures:
        sized = _SIZED.fullmatch(found.cell.question)
        if sized and sized["direction"] == direction:
            megabytes = float(sized["megabytes"])
            rate = megabytes / found.median / 1e3
            points[found.cell.contestant].append((megabytes, rate))
    return points


def _costs(figures: Sequence[Figure]) -> figure.Figure:
    """Processor time against workers."""
    picture = figure.Figure(figsize=(5, 4), layout="constrained")
    axes = picture.subplots()
    _draw(axes, [*_by_workers(figures)])
    axes.set(xlabel="workers", ylabel="seconds for a million examples", ylim=(0, None))
    return picture


def _by_workers(figures: Sequence[Figure]) -> Iterator[tuple[float, float]]:
    for found in figures:
        if workers := _WORKERS.fullmatch(found.cell.contestant):
            yield int(workers[1]), found.median * 1e6


def _draw(axes: Axes, line: Sequence[tuple[float, float]], **style: Any) -> None:
    axes.plot(*zip(*sorted(line), strict=True), marker="o", **style)


_PICTURES: Mapping[str, Callable[[Sequence[Figure]], figure.Figure]] = {
    "transfer": _throughput,
    "workers": _costs,
}
