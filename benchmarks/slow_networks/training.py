"""What each worker does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import stratagem
from benchmarks.scaling.hosts import Hosts
from benchmarks.scaling.worker import enter
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem.partitioners import MaxSizePartitioner

CONTEXT, BATCH, RATE, WARM_STEPS, SLOWER = 16, 64, 1e-3, 20, 3
_SHARD_BYTES = 1 << 20
PEER_SECONDS = 600.0


class Method(NamedTuple):
    """How workers train together.

    Attributes:
        optimizer: Wraps the optimizer of a worker; None for DistributedDataParallel with gloo.
        consistency: The strategy's.
    """

    optimizer: Callable[[torch.optim.Optimizer], torch.optim.Optimizer] | None
    consistency: str = "async"


def local(every: int, compression: str | None = None) -> Method:
    """Shares after so many steps."""
    return Method(partial(stratagem.LocalSteps, every=every, compression=compression))


METHODS: Mapping[str, Method] = {
    "DistributedDataParallel, gloo": Method(None),
    "sync": Method(stratagem.DistributedOptimizer, "sync"),
    "async": Method(stratagem.DistributedOptimizer),
    "async, int8": Method(partial(stratagem.DistributedOptimizer, compression="int8")),
    "local steps, 10": local(10),
    "local steps, 50": local(50),
    "local steps, 50, int8": local(50, "int8"),
    "local steps, 200": local(200),
}


class NextByte(nn.Sequential):
    """Says the byte behind some others."""

    def __init__(self) -> None:
        width = 2048
        layers = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        super().__init__(
            nn.Embedding(256, 64),
            nn.Flatten(),
            nn.Linear(64 * CONTEXT, width),
            nn.ReLU(),
            *layers,
            nn.Linear(width, 256),
        )


class Run(NamedTuple):
    """What one worker is to do.

    Attributes:
        worker: Its number.
        network: Its network.
        hosts: Where the servers are.
        method: By name.
        rendezvous: Where processes of torch.distributed meet.
        seconds: How long to train at most.
    """

    worker: int
    network: str
    hosts: Hosts
    method: str
    rendezvous: str
    seconds: float


def train(main: Connection, run: Run) -> None:
    """Train until the time is over; tell the seconds and the loss of each step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    enter(run.network)
    with _stepping(run) as step, suppress(BrokenPipeError):
        main.send("ready")
        main.recv()
        torch.manual_seed(1 + run.worker)
        begun = time.monotonic()
        while time.monotonic() < begun + run.seconds:
            loss = step()
            main.send((time.monotonic() - begun, loss))


@contextmanager
def _stepping(run: Run) -> Iterator[Callable[[], float]]:
    """Yield what takes a step and returns its loss."""
    pages = b"".join(path.read_bytes() for path in sorted(Path("docs").rglob("*.md")))
    text = torch.frombuffer(bytearray(pages), dtype=torch.uint8).long()
    method, workers = METHODS[run.method], len(run.hosts.networks)
    with ExitStack() as opened:
        if method.optimizer is None:
            os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
            distributed.init_process_group(
                "gloo",
                init_method=f"tcp://{run.rendezvous}",
                rank=run.worker,
                world_size=workers,
                timeout=timedelta(seconds=PEER_SECONDS),
            )
            model: nn.Module = DistributedDataParallel(NextByte())
            optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), RATE)
            call: Callable[..., Any] = _called
        else:
            strategy = opened.enter_context(_strategy(run, method.consistency))
            with strategy.scope():
                model = NextByte()
            optimizer = method.optimizer(torch.optim.AdamW(model.parameters(), RATE))
            call = strategy.run

        taken = count(1)

        def step() -> Tensor:
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, next(taken) / WARM_STEPS)
            begins = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1))
            batch = text[begins + torch.arange(CONTEXT + 1)]
            begun = time.process_time()
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch[:, :-1]), batch[:, -1])
            loss.backward()
            if run.worker == workers - 1:
                time.sleep((SLOWER - 1) * (time.process_time() - begun))
            optimizer.step()
            return loss.detach()

        yield lambda: float(call(step))


def _strategy(run: Run, consistency: str) -> stratagem.ParameterServerStrategy:
    names = [f"worker-{each}:1" for each in range(len(run.hosts.networks))]
    spec = stratagem.ClusterSpec({"ps": [*run.hosts.addresses], "worker": names})
    return stratagem.ParameterServerStrategy(
        SimpleClusterResolver(spec, task_type="worker", task_id=run.worker),
        token=run.hosts.token,
        consistency=consistency,
        peer_seconds=PEER_SECONDS,
        # Dealt out in turn, all weights would be on one half of the servers, and all biases on the
        # other.
        variable_partitioner=MaxSizePartitioner(_SHARD_BYTES),
        placement="balanced",
    )


def _called(step: Callable[[], Tensor]) -> Tensor:
    return step()
