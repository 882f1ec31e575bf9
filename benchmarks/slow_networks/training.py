"""What each worker does."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
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
_WIDTH, _INNER_WIDTH = 1024, 2560
_SHARD_BYTES = 1 << 20
_HELD_OUT_EVERY, _AT_ONCE = 16, 512
PEER_SECONDS = 600.0


class Method(NamedTuple):
    """How workers train together.

    Attributes:
        optimizer: Wraps the optimizer of a worker; None for plain PyTorch.
        every: How many steps it takes between two shares.
        consistency: The strategy's.
    """

    optimizer: Callable[[torch.optim.Optimizer], torch.optim.Optimizer] | None
    every: int = 1
    consistency: str = "async"


def local(every: int, compression: str | None = None) -> Method:
    """Shares after so many steps."""
    return Method(partial(stratagem.LocalSteps, every=every, compression=compression), every)


PEER = "DistributedDataParallel, gloo"
METHODS: Mapping[str, Method] = {
    PEER: Method(None),
    "sync": Method(stratagem.DistributedOptimizer, consistency="sync"),
    "async": Method(stratagem.DistributedOptimizer),
    "async, int8": Method(partial(stratagem.DistributedOptimizer, compression="int8")),
    "local steps, 10": local(10),
    "local steps, 50": local(50),
    "local steps, 50, int8": local(50, "int8"),
    "local steps, 200": local(200),
}


class _Block(nn.Module):
    """Adds to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, _INNER_WIDTH), nn.Linear(_INNER_WIDTH, _WIDTH)

    def forward(self, given: Tensor) -> Tensor:
        inner = functional.relu(self.up(self.norm(given)))
        added: Tensor = self.down(inner)
        return given + added


class NextByte(nn.Sequential):
    """Says the byte behind some others."""

    def __init__(self) -> None:
        super().__init__(
            nn.Embedding(256, _WIDTH // CONTEXT),
            nn.Flatten(),
            nn.Linear(_WIDTH, _WIDTH),
            _Block(),
            _Block(),
            nn.LayerNorm(_WIDTH),
            nn.Linear(_WIDTH, 256),
        )


class Text:
    """The pages of this repository; the last tenth is not trained on."""

    def __init__(self) -> None:
        pages = b"".join(path.read_bytes() for path in sorted(Path("docs").rglob("*.md")))
        text = torch.frombuffer(bytearray(pages), dtype=torch.uint8).long()
        most = len(text) * 9 // 10
        self._trained, self._held_out = text[:most], text[most:]

    def batch(self, count: int = BATCH, generator: torch.Generator | None = None) -> Tensor:
        """Return so many places of the text, each with the byte to say."""
        begins = torch.randint(len(self._trained) - CONTEXT - 1, (count, 1), generator=generator)
        return self._trained[begins + torch.arange(CONTEXT + 1)]

    @torch.no_grad()
    def loss_of(self, model: nn.Module) -> float:
        """Return the mean loss over places that are not trained on."""
        begins = torch.arange(0, len(self._held_out) - CONTEXT - 1, _HELD_OUT_EVERY)
        places = self._held_out[begins[:, None] + torch.arange(CONTEXT + 1)]
        total = sum(len(some) * float(loss_of(model, some)) for some in places.split(_AT_ONCE))
        return total / len(places)


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the mean loss of a batch."""
    mean: Tensor = functional.cross_entropy(model(batch[:, :-1]), batch[:, -1])
    return mean


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """Return what steps a model; its rate is set for each step."""
    return torch.optim.AdamW(model.parameters(), RATE, fused=True)


def set_rate(optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
    """Set the rate of a step: it rises, and falls from then on, by a cosine."""
    falling = 0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2
    for group in optimizer.param_groups:
        group["lr"] = RATE * min(1.0, step / WARM_STEPS) * falling


class Run(NamedTuple):
    """What one worker is to do.

    Attributes:
        worker: Its number.
        hosts: Where servers and workers are.
        method: By name.
        rendezvous: Where processes of torch.distributed meet.
        steps: How many it takes.
        seed: For the model, and for its batches.
        kept: After which steps the loss is asked for of what it has then.
        planned: How many its learning rate is for, if not for those.
    """

    worker: int
    hosts: Hosts
    method: str
    rendezvous: str
    steps: int
    seed: int = 0
    kept: Sequence[int] = ()
    planned: int = 0


class Taken(NamedTuple):
    """What a worker says of a step.

    Attributes:
        seconds: When it ended, from when the first one began.
        nbytes: What has come and gone by its cable since then.
    """

    seconds: float
    nbytes: int


class _Program(NamedTuple):
    """How a worker trains.

    Attributes:
        model: What it trains.
        step: Takes a step of that number.
        finish: Adopts what all workers have come to.
    """

    model: nn.Module
    step: Callable[[int], object]
    finish: Callable[[], object]


def train(main: Connection, run: Run) -> None:
    """Train, and tell what was `Taken` of each step; in the end, losses by step.

    The last loss is that of what all workers have come to.
    """
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    if network := run.hosts.networks[run.worker]:
        enter(network)
    text, kept = Text(), dict[int, list[Tensor]]()
    with _program(run, text) as program:
        main.send("ready")
        main.recv()
        torch.manual_seed(_seed(run.seed, run.worker))
        begun, before = time.monotonic(), _nbytes()
        for step in range(1, run.steps + 1):
            program.step(step)
            if not run.worker:
                main.send(Taken(time.monotonic() - begun, _nbytes() - before))
            if step in run.kept:
                kept[step] = [one.detach().clone() for one in program.model.parameters()]
        main.send("ended")
        main.recv()
        program.finish()
        kept[run.steps] = [one.detach().clone() for one in program.model.parameters()]
        main.send({step: _loss_with(values, text) for step, values in kept.items()})
        main.recv()


def alone(steps: int, batches: int, seed: int, every: int) -> Mapping[int, float]:
    """Train with the mean of so many workers' batches; return losses by step, each so many."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model, text, found = NextByte(), Text(), dict[int, float]()
    optimizer = adamw(model)
    own = [torch.Generator().manual_seed(_seed(seed, worker)) for worker in range(batches)]
    for step in range(1, steps + 1):
        set_rate(optimizer, step, steps)
        optimizer.zero_grad()
        batch = torch.cat([text.batch(BATCH, one) for one in own])
        loss_of(model, batch).backward()
        optimizer.step()
        if not step % every or step == steps:
            found[step] = text.loss_of(model)
    return found


def _seed(seed: int, worker: int) -> int:
    return 1000 * (1 + seed) + worker


def _loss_with(values: Sequence[Tensor], text: Text) -> float:
    model = NextByte()
    with torch.no_grad():
        for own, value in zip(model.parameters(), values, strict=True):
            own.copy_(value)
    return text.loss_of(model)


def _nbytes() -> int:
    """Return what has come and gone by the cable of this host."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        device, _, counts = line.partition(":")
        if device.strip() == "eth0":
            fields = counts.split()
            return int(fields[0]) + int(fields[8])
    return 0


@contextmanager
def _program(run: Run, text: Text) -> Iterator[_Program]:
    method, last = METHODS[run.method], len(run.hosts.networks) - 1
    with ExitStack() as opened:
        finish: Callable[[], object] = _nothing
        if method.optimizer is None:
            model: nn.Module = _grouped(run)
            optimizer: torch.optim.Optimizer = adamw(model)
            call: Callable[..., Any] = _called
        else:
            strategy = opened.enter_context(_strategy(run, method.consistency))
            with strategy.scope():
                model = NextByte()
            optimizer = method.optimizer(adamw(model))
            call = strategy.run
            local = optimizer if isinstance(optimizer, stratagem.LocalSteps) else None
            finish = local.adopt if local else partial(call, _nothing)

        def step(number: int) -> None:
            set_rate(optimizer, number, run.planned or run.steps)
            begun = time.process_time()
            optimizer.zero_grad()
            loss_of(model, text.batch()).backward()
            if run.worker == last:
                time.sleep((SLOWER - 1) * (time.process_time() - begun))
            optimizer.step()
            if number == run.steps and number % method.every:
                optimizer.share()  # type: ignore[attr-defined]

        yield _Program(model, lambda number: call(step, (number,)), finish)


def _grouped(run: Run) -> nn.Module:
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{run.rendezvous}",
        rank=run.worker,
        world_size=len(run.hosts.networks),
        timeout=timedelta(seconds=PEER_SECONDS),
    )
    return DistributedDataParallel(NextByte())


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


def _called(step: Callable[[int], object], args: tuple[int]) -> object:
    return step(*args)


def _nothing() -> None:
    pass
