"""Versions that are followed while trainers, servers, readers and reader servers are killed."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import torch

import stratagem
from benchmarks.kills import looking, serving
from benchmarks.kills.attack import PATIENCE_SECONDS, SERVERS, Attack
from benchmarks.kills.looking import FAULTS, SEEN, Model
from benchmarks.kills.victims import Program, Servers, Workers
from stratagem import ParameterServerStrategy
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_deploy.processes.fork_server import start_forked
from stratagem_deploy.processes.process import Process, Transcript, import_path
from stratagem_proto.secret_files import TOKEN_FILE


def followed(attack: Attack) -> list[str]:
    """Have versions read while anybody is killed; return what is wrong."""
    with attack.cluster(SERVERS, 1) as running, _readers(attack, running) as readers:
        with attack.on(Servers(running, SERVERS), Workers(running, 1), *readers):
            (last,) = running.run(_publish, attack.end)
        return [fault for folder in _folders(attack) for fault in _faults(folder, last)]


def _publish(resolver: SimpleClusterResolver, end: Path) -> int:
    """Take steps and publish what each leaves until there is an end; return the last version.

    A step that was cut off may be on some of the servers. It is in no version, since the next one
    writes all that it has written.
    """
    with ParameterServerStrategy(resolver) as strategy:
        with strategy.scope():
            model = Model()
        optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        strategy.refresh()

        def step(number: int) -> None:
            optimizer.zero_grad()
            model(number).backward()
            optimizer.step()

        for number in count(model.last() + 1):
            strategy.run(step, args=(number,))
            version = strategy.publish()
            if end.exists():
                return version
        raise AssertionError("steps end")


def _folders(attack: Attack) -> list[Path]:
    return [attack.folder / name for name in ("of-cluster", "of-server")]


@contextmanager
def _readers(attack: Attack, running: LocalCluster) -> Iterator[list[Program]]:
    """Run a reader server, a reader of it and one of the cluster."""
    resolver = running.cluster_resolver
    token = attack.folder / "token"
    token.touch(mode=0o600)
    token.write_text(resolver.cluster_token or "")
    source = ",".join(filter(None, resolver.cluster_spec().job_tasks("ps")))
    address = f"127.0.0.1:{_free_port()}"
    serve = serving.__name__, "--from", source, "--bind", address
    of_cluster, of_server = _folders(attack)
    for folder in (of_cluster, of_server):
        folder.mkdir()
    look = looking.__name__
    programs = [
        Program("reader server", lambda: _started(token, *serve)),
        Program("reader", lambda: _started(token, look, str(of_cluster), source)),
        Program("reader", lambda: _started(token, look, str(of_server), f"serve://{address}")),
    ]
    try:
        yield programs
    finally:
        for program in programs:
            program.close()


def _free_port() -> int:
    """Return a port that a server can listen on again and again."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _started(token: Path, *command: str) -> Process:
    environment = {**import_path(), TOKEN_FILE.variable: str(token)}
    return Process(
        "reader",
        [sys.executable, "-m", *command],
        environment=environment,
        output=Transcript(),
        start=start_forked,
    )


def _faults(folder: Path, last: int) -> list[str]:
    """Wait until a reader has come to a version; return what it has found wrong."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    found = [*_found(folder)]
    while (seen := _seen(folder)) < last and time.monotonic() < give_up_at:
        time.sleep(0.1)
        found = [*_found(folder)]
    if seen < last:
        found.append(f"{folder.name}: comes to version {seen} and not to {last}")
    return found


def _found(folder: Path) -> Iterator[str]:
    file = folder / FAULTS
    yield from file.read_text().splitlines() if file.exists() else ()


def _seen(folder: Path) -> int:
    file = folder / SEEN
    return int(json.loads(file.read_text())["version"]) if file.exists() else 0
