"""`python -m benchmarks.scaling`: steps a second of 1 to 16 workers on 1 to 8 servers."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm

from benchmarks.harness.machine import load, machine, seconds_of_all
from benchmarks.harness.namespace import missing
from benchmarks.peers.processor_time import processor_seconds
from benchmarks.peers.stratagem.loads import LOADS
from benchmarks.scaling.curve import MARKS, Point, drawn, table
from benchmarks.scaling.hosts import NEEDED, Hosts, links, loopback
from benchmarks.scaling.worker import Order, Taken, Workers, received

_FOLDER = Path("runs/benchmarks")

Load = Enum("Load", {name: name for name in LOADS}, type=str)  # type: ignore[misc]


class Place(str, Enum):
    """Where servers and workers are."""

    LOOPBACK = "loopback"
    LINKS = "links"


_HOSTS: Mapping[Place, Callable[[int, int], AbstractContextManager[Hosts]]] = {
    Place.LOOPBACK: loopback,
    Place.LINKS: links,
}


def main(  # noqa: PLR0913 - independent settings, by name
    place: Annotated[
        list[Place] | None, typer.Option(help="May be repeated; by default both, as root.")
    ] = None,
    workers: Annotated[list[int] | None, typer.Option(min=1, help="May be repeated.")] = None,
    servers: Annotated[list[int] | None, typer.Option(min=1, help="May be repeated.")] = None,
    load_: Annotated[Load, typer.Option("--load", help="What a step asks for.")] = Load["rows"],
    computing: Annotated[float, typer.Option(min=0.0, help="Seconds that a step waits.")] = 0.02,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of each point.")] = 2.0,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = _FOLDER,
) -> None:
    """Take steps that compute nothing: each worker pulls, waits, and pushes.

    So a machine of few processors can serve many workers. Points at which its processors, a
    server's process or its link are busy to 90 % are marked. "links" gives each worker and server a
    network of its own with a cable of 1 Gbit/s, and has workers wait for the 0.2 ms that packets
    would be under way.
    """
    out.mkdir(parents=True, exist_ok=True)
    curves: dict[str, Sequence[Point]] = {}
    before = load()
    for each in place or _possible():
        counts = workers or _WORKERS, servers or _SERVERS
        with _HOSTS[each](max(counts[1]), max(counts[0])) as hosts:
            points = _curve(hosts, load_.value, counts, computing, seconds)
            total = len(counts[0]) * len(counts[1])
            curves[each.value] = [*tqdm(points, desc=each.value, total=total, unit="point")]
        about = {**machine(), "load before": before, "load after": load()}
        _keep(curves, about, out)
    print((out / "scaling.md").read_text())


def _text(curves: Mapping[str, Sequence[Point]], about: Mapping[str, object]) -> str:
    tables = [f"{_TITLES[name]}:\n\n{table(points).markdown()}" for name, points in curves.items()]
    marks = "; ".join(f"{mark} {_FULL[name]}" for name, mark in MARKS.items())
    conditions = ", ".join(f"{key} {value}" for key, value in about.items())
    return "\n".join(
        ["## scaling\n", *tables, f"At least 90 % full were: {marks}. {conditions}.\n"]
    )


_TITLES = {
    Place.LOOPBACK.value: "On one host",
    Place.LINKS.value: "With 1 Gbit/s and 0.2 ms between hosts",
}
_FULL = {"cores": "all processors", "server": "a server's process", "link": "its link"}
_WORKERS, _SERVERS = (1, 2, 4, 8, 16), (1, 2, 4, 8)


def _possible() -> Sequence[Place]:
    if why := missing(NEEDED):
        print(f"without links: {why}")
        return [Place.LOOPBACK]
    return [*Place]


def _curve(
    hosts: Hosts,
    load_name: str,
    counts: tuple[Sequence[int], Sequence[int]],
    computing: float,
    seconds: float,
) -> Iterator[Point]:
    workers, servers = counts
    with closing(Workers(hosts.networks, hosts.transport)) as crowd:
        for server_count in servers:
            for worker_count in workers:
                waiting = computing + hosts.waiting
                places = hosts.addresses[:server_count]
                order = Order(places, hosts.token, load_name, worker_count, seconds, waiting)
                yield _point(crowd, order, hosts)


def _point(crowd: Workers, order: Order, hosts: Hosts) -> Point:
    with crowd.ready(order) as workers:
        began, used, by_servers = time.perf_counter(), seconds_of_all(), _used(hosts)
        for each in workers:
            each.send("go")
        taken: list[Taken] = [received(each, order.seconds + 60.0) for each in workers]
        clock = time.perf_counter() - began
        cores = (seconds_of_all() - used) / clock / (os.cpu_count() or 1)
        server = max(now - then for now, then in zip(_used(hosts), by_servers, strict=True))
    # Each way alike: what is read of rows, and what is sent for them.
    each_way = sum(each.nbytes / each.seconds for each in taken) / len(order.addresses) / 2
    return Point(
        order.workers,
        len(order.addresses),
        sum(each.steps / each.seconds for each in taken),
        order.waiting,
        cores,
        server / clock,
        each_way / hosts.rate if hosts.rate else 0.0,
        sum(each.nbytes for each in taken) / sum(each.steps for each in taken),
    )


def _used(hosts: Hosts) -> Sequence[float]:
    return [processor_seconds(pid) for pid in hosts.pids]


def _keep(curves: Mapping[str, Sequence[Point]], about: Mapping[str, object], folder: Path) -> None:
    drawn(curves).savefig(folder / "scaling.svg")
    (folder / "scaling.md").write_text(_text(curves, about))
    found = {name: [point._asdict() for point in points] for name, points in curves.items()}
    facts = json.dumps({"machine": about, "curves": found}, indent=2)
    (folder / "scaling.json").write_text(facts + "\n")


if __name__ == "__main__":
    # As from a terminal, so that no process is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    typer.run(main)
