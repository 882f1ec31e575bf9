"""Workers of clusters that divide one dataset, and read it in different orders."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

import stratagem
from stratagem import AutoShardPolicy, CommunicationOptions, InvalidArgumentError
from stratagem_deploy import LocalCluster

pytestmark = pytest.mark.cluster

ROWS, PEER_SECONDS = 24, 120.0


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.tensor([float(row)])


class Shuffled(Sampler[int]):
    """Draws from Python's generator, which each process seeds for itself."""

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Iterator[int]:
        rows = list(range(ROWS))
        random.shuffle(rows)
        return iter(rows)


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __iter__(self) -> Iterator[torch.Tensor]:
        rows = list(range(ROWS))
        random.Random(self._seed).shuffle(rows)
        return (torch.tensor([float(row)]) for row in rows)


KINDS: dict[str, Callable[[int], Any]] = {
    "sampler": lambda _: DataLoader(Rows(), 8, sampler=Shuffled()),
    "stream": lambda worker: DataLoader(Stream(worker), 8),
}


def parameter_servers(resolver: Any) -> stratagem.Strategy:
    return stratagem.ParameterServerStrategy(
        resolver, consistency="sync", peer_seconds=PEER_SECONDS
    )


def mirrored(resolver: Any) -> stratagem.Strategy:
    options = CommunicationOptions(timeout_seconds=PEER_SECONDS)
    return stratagem.MultiWorkerMirroredStrategy(resolver, options)


def train(strategy: stratagem.Strategy, batches: Any) -> list[int]:
    """Take a step with each batch; return the rows that this worker read."""
    with strategy.scope():
        model = torch.nn.Linear(1, 1)
    optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def step(rows: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(rows).mean().backward()
        optimizer.step()

    seen = []
    for rows in batches:
        seen += [int(row) for row in rows]
        strategy.run(step, args=(rows,))
    return seen


def read(strategy: stratagem.Strategy, batches: Any) -> list[int]:
    """Only read, and meet."""
    seen = [int(row) for rows in batches for row in rows]
    if isinstance(strategy, stratagem.ParameterServerStrategy):
        strategy.barrier("read")
    return seen


@pytest.mark.parametrize("use", [train, read])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("servers", [1, 0], ids=["servers", "mirrored"])
def test_both_workers_are_told_of_a_different_order(servers: int, kind: str, use: Any) -> None:
    make = parameter_servers if servers else mirrored

    def program(resolver: Any) -> str:
        strategy = make(resolver)
        dataset = strategy.experimental_distribute_dataset(KINDS[kind](resolver.task_id))
        with pytest.raises(InvalidArgumentError) as raised:
            use(strategy, dataset)
        return str(raised.value)

    with LocalCluster(ps=servers, workers=2) as cluster:
        first, second = cluster.run(program)
    assert first == second
    assert "read different data as batch 0 of pass 0" in first
    assert all(f"task:{number}" in first for number in range(2))


@pytest.mark.parametrize("servers", [1, 0], ids=["servers", "mirrored"])
def test_workers_that_read_alike_read_each_row_once(servers: int) -> None:
    make = parameter_servers if servers else mirrored

    def program(resolver: Any) -> list[list[int]]:
        strategy = make(resolver)
        made = [DataLoader(Rows(), 8, shuffle=True), DataLoader(Stream(3), 8)]
        datasets = [strategy.experimental_distribute_dataset(one) for one in made]
        # One worker alone looks.
        if resolver.task_id:
            assert [one.element_spec.shape for one in datasets] == [(None, 1)] * 2
        return [train(strategy, one) for one in (*datasets, *datasets)]

    with LocalCluster(ps=servers, workers=2) as cluster:
        for first, second in zip(*cluster.run(program), strict=True):
            assert sorted(first + second) == list(range(ROWS))


class OfFiles:
    """Reads a number of each file."""

    def __init__(self, files: list[str]) -> None:
        self.files = files

    def with_files(self, files: list[str]) -> OfFiles:
        return OfFiles(files)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([[float(Path(one).read_text())]]) for one in self.files)


def test_files_in_another_order_are_told_where_workers_wait_for_nobody(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{number}.txt") for number in range(4)]
    for number, file in enumerate(files):
        Path(file).write_text(str(number))

    def program(resolver: Any, alike: bool) -> Any:
        order = files if alike or not resolver.task_id else files[::-1]
        with stratagem.ParameterServerStrategy(resolver, consistency="async") as strategy:
            dataset = strategy.experimental_distribute_dataset(
                OfFiles(order), auto_shard_policy=AutoShardPolicy.FILE
            )
            try:
                seen = train(strategy, dataset)
                strategy.barrier("read")
            except InvalidArgumentError as error:
                return str(error)
            return seen

    with LocalCluster(ps=1, workers=2) as cluster:
        assert cluster.run(program, True) == [[0, 2], [1, 3]]
        first, second = cluster.run(program, False)
        assert first == second
        assert "different lists of the files of dataset 0" in first
