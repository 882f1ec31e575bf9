"""Throughput by workers and servers, and what keeps it from being more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from matplotlib import colormaps, figure
from matplotlib.axes import Axes

from benchmarks.harness.table import Table

# Of what is busy to this part, more is not to be had.
_FULL = 0.9

MARKS: Mapping[str, str] = {"cores": "†", "server": "‡", "link": "§"}
"""What a point is marked by in tables, by what limits it."""


class Point(NamedTuple):
    """What so many workers and servers came to.

    Attributes:
        workers: How many.
        servers: How many.
        rate: Steps of all workers a second.
        step: Seconds of a step that nobody holds up, of which only waiting is known.
        cores: How much of all processors was busy, by whomever.
        server: How much of a processor the busiest server used.
        link: How much was sent each way of what the cable of a server carries; 0 if it has none.
        nbytes: What a step sent and received.
    """

    workers: int
    servers: int
    rate: float
    step: float
    cores: float
    server: float
    link: float
    nbytes: float

    @property
    def ideal(self) -> float:
        """Steps a second of workers that only wait."""
        return self.workers / self.step

    @property
    def limits(self) -> Sequence[str]:
        """What was full."""
        busy = {"cores": self.cores, "server": self.server, "link": self.link}
        return [name for name, part in busy.items() if part >= _FULL]


def table(points: Iterable[Point]) -> Table:
    """A row for each number of workers, a column for each of servers: steps/s, and of the ideal."""
    cells: dict[int, dict[int, str]] = {}
    servers: dict[int, None] = {}
    for point in points:
        marks = "".join(MARKS[each] for each in point.limits)
        shown = f"{point.rate:.0f} ({point.rate / point.ideal:.2f}){marks and ' ' + marks}"
        cells.setdefault(point.workers, {})[point.servers] = shown
        servers[point.servers] = None
    columns = [counted(each, "server") for each in servers]
    rows = [
        [counted(workers, "worker"), *(row.get(each, "") for each in servers)]
        for workers, row in cells.items()
    ]
    return Table(["steps/s (of those that only wait)", *columns], rows)


def counted(count: int, one: str) -> str:
    """So many of them, in words."""
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


def drawn(curves: Mapping[str, Sequence[Point]]) -> figure.Figure:
    """Return a picture with a part for each place of the hosts; what is limited is hollow."""
    picture = figure.Figure(figsize=(5 * len(curves), 4), layout="constrained")
    all_axes = picture.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for axes, (name, points) in zip(all_axes, curves.items(), strict=True):
        _draw(axes, points)
        axes.set(title=name, xlabel="workers", ylim=(0, None), xlim=(0, None))
    all_axes[0].set(ylabel="steps of all workers a second")
    all_axes[0].legend()
    return picture


def _draw(axes: Axes, points: Sequence[Point]) -> None:
    ideal = sorted({(each.workers, each.ideal) for each in points})
    axes.plot(*zip(*ideal, strict=True), "k:", label="workers that only wait")
    counts = sorted({each.servers for each in points})
    for place, servers in enumerate(counts):
        line = sorted(each for each in points if each.servers == servers)
        color = colormaps["viridis"](place / len(counts))
        at, rates = [each.workers for each in line], [each.rate for each in line]
        axes.plot(at, rates, color=color, label=counted(servers, "server"))
        faces = ["none" if each.limits else color for each in line]
        axes.scatter(at, rates, facecolors=faces, edgecolors=[color] * len(line), zorder=3)
