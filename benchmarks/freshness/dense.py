"""`python -m benchmarks.freshness.dense`: bytes and seconds of versions of a large dense model.

A transformer of 100 million parameters learns the pages of this repository, byte by byte, under
Adam with a small learning rate. A reader follows it over a cable of 100 Mbit/s. Server and program
are one process on one host, the reader is on another: both are network namespaces, so root runs it.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional

import stratagem
from benchmarks.harness.machine import load, machine
from benchmarks.harness.namespace import Namespace, missing
from benchmarks.harness.network import Network, addresses
from benchmarks.harness.table import Table
from benchmarks.scaling.hosts import NEEDED
from benchmarks.scaling.worker import enter, forking
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings

LAYERS, WIDTH, HEADS, TOKENS, BATCH = 14, 768, 12, 64, 2
TOKEN = "of this benchmark"
_PORT = 2222
_SECONDS = 600.0


class Bytes(nn.Module):
    """A transformer that says the next byte of a text."""

    def __init__(self, dtype: torch.dtype, layers: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(256, WIDTH, dtype=dtype)
        self.places = nn.Embedding(TOKENS, WIDTH, dtype=dtype)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True, norm_first=True, dtype=dtype
            )
            for _ in range(layers)
        )
        self.out = nn.Linear(WIDTH, 256, dtype=dtype)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.symbols(text) + self.places.weight
        mask = nn.Transformer.generate_square_subsequent_mask(TOKENS, dtype=hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        made: Tensor = self.out(hidden)
        return made


def train(main: Connection, network: str, address: str, dtype: torch.dtype, layers: int) -> None:
    """Serve and train: for each number of steps that comes, take these and publish a version."""
    enter(network)
    settings = ServerSettings(bind=address, token=TOKEN, insecure=True, publication_bytes=1 << 30)
    pages = b"".join(path.read_bytes() for path in sorted(Path("docs").rglob("*.md")))
    text = torch.frombuffer(bytearray(pages), dtype=torch.uint8).long()
    spec = stratagem.ClusterSpec({"ps": [address], "worker": ["worker:1"]})
    resolver = SimpleClusterResolver(spec, task_type="worker", task_id=0)
    torch.manual_seed(0)
    with ParameterServer(settings), ExitStack() as opened:
        strategy = stratagem.ParameterServerStrategy(resolver, token=TOKEN)
        opened.enter_context(strategy)
        with strategy.scope():
            model = Bytes(dtype, layers)
        adam = torch.optim.Adam(model.parameters(), lr=1e-6)
        optimizer = stratagem.DistributedOptimizer(adam)
        main.send(sum(each.numel() for each in model.parameters()))

        def step() -> float:
            begins = torch.randint(len(text) - TOKENS - 1, (BATCH,)).tolist()
            batch = torch.stack([text[each : each + TOKENS + 1] for each in begins])
            optimizer.zero_grad()
            logits = model(batch[:, :-1]).float()
            loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            return float(loss.detach())

        while (steps := main.recv()) is not None:
            for _ in range(steps):
                strategy.run(step)
            main.send((strategy.publish(), time.time()))


def read(main: Connection, network: str, address: str) -> None:
    """Follow: for each version that comes, say when it was here."""
    enter(network)
    version = main.recv()
    with stratagem.Reader([address], token=TOKEN, timeout=_SECONDS) as reader:
        while version is not None:
            reader.wait_for(version, _SECONDS)
            main.send(time.time())
            version = main.recv()


def main(
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    layers: Annotated[int, typer.Option(min=1, help="Of the transformer.")] = LAYERS,
    rate: Annotated[int, typer.Option(min=1, help="Megabits a second of the cable.")] = 100,
    steps: Annotated[str, typer.Option(help="Between versions, with commas.")] = "1,1,10,10",
) -> None:
    """Measure versions of a large dense model."""
    if reason := missing(NEEDED):
        raise SystemExit(reason)
    before, names = load(), ["cluster", "reader"]
    with ExitStack() as opened:
        network, found = opened.enter_context(closing(Network(f"{rate}mbit"))), addresses(names)
        spaces = {name: opened.enter_context(closing(Namespace())) for name in names}
        for name, space in spaces.items():
            network.join(space, name, found[name])
        context, address = forking(), f"{found['cluster']}:{_PORT}"
        training, trainer = context.Pipe()
        reading, reader = context.Pipe()
        kind = getattr(torch, dtype)
        own = trainer, spaces["cluster"].network, address, kind, layers
        context.Process(target=train, args=own, daemon=True).start()
        own_too = reader, spaces["reader"].network, address
        context.Process(target=read, args=own_too, daemon=True).start()
        count, rows = training.recv(), list[list[str]]()
        whole = count * kind.itemsize
        for taken in [3, *map(int, steps.split(","))]:
            begun = network.bytes_to("reader")
            training.send(taken)
            version, published = training.recv()
            reading.send(version)
            seconds = reading.recv() - published
            nbytes = network.bytes_to("reader") - begun
            what = f"{taken} steps later" if rows else "whole"
            share = f"{100 * nbytes / whole:.2f} %"
            rows.append([what, f"{nbytes / 1e6:.2f} MB", share, f"{seconds:.1f} s"])
        training.send(None)
        reading.send(None)
    print(f"{count:,} parameters in {dtype}, {whole / 1e6:.0f} MB, {rate} Mbit/s\n")
    head = ["version", "bytes on the cable", "of the whole", "until it is there"]
    print(Table(head, rows).markdown())
    about = machine() | {"load before": before, "load after": load()}
    print(", ".join(f"{name} {value}" for name, value in about.items()))


if __name__ == "__main__":
    typer.run(main)
