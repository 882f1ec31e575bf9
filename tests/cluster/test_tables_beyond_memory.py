"""Programs whose tables are mostly in files, which end with the bytes of programs in memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import stratagem
from stratagem import ParameterServerStrategy
from stratagem_deploy import LocalCluster
from stratagem_deploy.checkpoints.inspection import differences
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.status_pb2 import TableFilesStatus
from stratagem_psserver.tables.direct_file import ReadQueue
from stratagem_storage.checkpoint.folder import open_checkpoint
from tests.psserver.wire import RawClient, status_of

pytestmark = pytest.mark.cluster

MIB = 1 << 20
COLUMNS, KEYS, AT_ONCE, STEPS = 64, 12_000, 1500, 30

Meanwhile = Callable[[LocalCluster, int], object]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = torch.nn.Embedding(KEYS, COLUMNS, sparse=True)
        self.words = stratagem.nn.DynamicEmbedding(COLUMNS)
        torch.nn.init.constant_(self.items.weight, 0.5)

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = (self.items(keys) * (1 + self.words(keys * 7))).sum(1)
        return scores


def keys_of(step: int) -> torch.Tensor:
    drawn = torch.rand(AT_ONCE, generator=torch.Generator().manual_seed(step))
    return (drawn**2 * KEYS).long()


def train(
    strategy: ParameterServerStrategy, steps: range, each: Callable[[int], object], folder: str = ""
) -> list[float]:
    torch.manual_seed(0)
    with strategy.scope():
        model = Model()
    if folder:
        strategy.restore(folder)
    adam = torch.optim.Adagrad(model.parameters(), lr=0.1)
    optimizer = stratagem.DistributedOptimizer(adam)

    def step(number: int) -> float:
        optimizer.zero_grad()
        loss = (model(keys_of(number)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    told = list[float]()
    for number in steps:
        told.append(strategy.run(step, args=(number,)))
        each(number)
    return told


def trained(
    cluster: LocalCluster,
    steps: range = range(STEPS),
    meanwhile: Meanwhile = lambda *_: None,
    restored: str = "",
    saved: str = "",
) -> list[float]:
    with ParameterServerStrategy(cluster.cluster_resolver) as strategy:
        told = train(strategy, steps, lambda number: meanwhile(cluster, number), restored)
        if saved:
            strategy.save(saved)
    return told


def table_files(cluster: LocalCluster) -> TableFilesStatus:
    resolver = cluster.cluster_resolver
    (address,) = resolver.cluster_spec().job_tasks("ps")
    assert address and resolver.cluster_token
    with RawClient(address, resolver.cluster_token) as client:
        return status_of(client).parameter_server.table_files


def in_memory(**settings: Any) -> list[float]:
    with LocalCluster(1, workers=0, **settings) as cluster:
        return trained(cluster)


def test_steps_a_checkpoint_and_its_restoration_on_two_servers_give_the_losses_of_memory(
    tmp_path: Path,
) -> None:
    half, path = STEPS // 2, str(tmp_path / "checkpoint")
    with LocalCluster(1, workers=0, table_bytes=MIB, table_folder=tmp_path) as cluster:
        losses = trained(cluster, range(half), saved=path)
        files = table_files(cluster)
        assert files.missed_rows and files.read_bytes and files.evicted_bytes
        assert files.file_bytes > 4 * MIB >= 2 * files.resident.used
    with LocalCluster(2, workers=0, table_bytes=MIB, table_folder=tmp_path) as cluster:
        losses += trained(cluster, range(half, STEPS), restored=path)
    assert losses == in_memory()
    # The files have no names.
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint"]


def test_a_server_that_is_killed_again_and_again_goes_on_from_its_log(tmp_path: Path) -> None:
    def killed(cluster: LocalCluster, number: int) -> None:
        if number % 7 == 3:
            cluster.kill("ps", 0)
            cluster.restart("ps", 0)

    settings: dict[str, Any] = {"durability": "log", "durability_folder": tmp_path}
    with LocalCluster(1, workers=0, processes=True, table_bytes=MIB, **settings) as cluster:
        assert trained(cluster, meanwhile=killed) == in_memory()


def test_a_backup_with_tables_in_files_takes_over_with_the_same_bytes() -> None:
    def killed(cluster: LocalCluster, number: int) -> None:
        if number == STEPS // 2:
            cluster.kill("ps", 0, "primary")

    with LocalCluster(1, workers=0, replicas=2, processes=True, table_bytes=MIB) as cluster:
        assert trained(cluster, meanwhile=killed) == in_memory()


def test_a_task_with_tables_in_files_moves() -> None:
    with (
        LocalCluster(2, workers=0, movable=True, processes=True, table_bytes=MIB) as cluster,
        ParameterServerStrategy(cluster.cluster_resolver) as strategy,
    ):

        def moved(number: int) -> None:
            if number == STEPS // 2:
                strategy.servers.drain(0)

        losses = train(strategy, range(STEPS), moved)
    assert losses == in_memory()


@pytest.mark.parametrize(
    "max_bytes", [None, 9000 * (2 * COLUMNS * 4 + 40)], ids=["all rows", "evicted rows"]
)
def test_incremental_checkpoints_read_only_rows_that_were_written_since(
    tmp_path: Path, max_bytes: int | None
) -> None:
    """What they have together is what a whole checkpoint has, whatever was evicted or made anew."""
    folder, draw = tmp_path / "run", torch.Generator().manual_seed(2)
    with (
        LocalCluster(1, workers=0, table_bytes=MIB, table_folder=tmp_path) as cluster,
        ParameterServerStrategy(cluster.cluster_resolver) as strategy,
    ):
        with strategy.scope():
            words = stratagem.nn.DynamicEmbedding(COLUMNS, max_bytes=max_bytes)
        adagrad = torch.optim.Adagrad(words.parameters(), lr=0.1)
        optimizer = stratagem.DistributedOptimizer(adagrad)

        def step(keys: torch.Tensor) -> None:
            optimizer.zero_grad()
            (words(keys) - 1).square().sum().backward()
            optimizer.step()

        for keys in torch.arange(KEYS).split(AT_ONCE):
            strategy.run(step, args=(keys,))
        strategy.save(folder, incremental=True, keep=9)
        for number in range(4):
            keys = torch.randint(KEYS + 100, (100,), generator=draw).unique()
            strategy.run(step, args=(keys,))
            if number == 2:
                # Another state of the same name, of rows that are not written.
                adagrad = torch.optim.Adagrad(words.parameters(), lr=0.1)
                optimizer = stratagem.DistributedOptimizer(adagrad)
                strategy.run(step, args=(keys[:1],))
            before = table_files(cluster)
            strategy.save(folder, incremental=True, keep=9)
            read = table_files(cluster).read_bytes - before.read_bytes
            if number != 2 and max_bytes is None:
                assert read < before.row_bytes / 4
            strategy.save(tmp_path / f"whole-{number}")
            one, other = open_checkpoint(folder), open_checkpoint(tmp_path / f"whole-{number}")
            assert not [*differences(one, other)]


@pytest.mark.parametrize("count", [1, 1000], ids=["small", "large"])
def test_a_disk_that_does_not_answer_holds_up_only_who_asks_for_its_rows(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers, read = threading.Event(), threading.Event(), ReadQueue.read

    def slow(*given: Any) -> Any:
        asked.set()
        assert answers.wait(60)
        return read(*given)

    with (
        LocalCluster(1, workers=0, table_bytes=MIB) as cluster,
        ParameterServerStrategy(cluster.cluster_resolver) as strategy,
        ParameterServerStrategy(cluster.cluster_resolver) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        with other.scope():
            small = stratagem.Variable(torch.ones(3), name="small")
        with strategy.scope():
            table = stratagem.nn.Embedding(KEYS, COLUMNS)
            torch.nn.init.constant_(table.weight, 2.0)
        sgd = stratagem.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))

        def step(keys: torch.Tensor) -> None:
            table(keys).sum().backward()
            sgd.step()
            sgd.zero_grad()

        for keys in torch.arange(KEYS).split(AT_ONCE):
            strategy.run(step, args=(keys,))
        monkeypatch.setattr(ReadQueue, "read", slow)
        looking = threads.submit(lambda: table(torch.arange(count)).detach())
        assert asked.wait(60)
        small.assign_add(torch.ones(3))
        assert small.numpy().tolist() == [2.0, 2.0, 2.0]
        assert not looking.done()
        answers.set()
        assert torch.equal(looking.result(60), torch.ones(count, COLUMNS))


def test_rows_of_tables_need_a_folder_on_a_disk(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="all are in memory; give --table-bytes"):
        LocalCluster(1, table_folder=tmp_path)
    with (
        pytest.raises(InvalidArgumentError, match="is a tmpfs, which is memory itself"),
        LocalCluster(1, table_bytes=MIB, table_folder="/dev/shm"),
    ):
        pass
    with (
        pytest.raises(InvalidArgumentError, match="cannot write files of its tables in"),
        LocalCluster(1, table_bytes=MIB, table_folder=tmp_path / "none"),
    ):
        pass
    with pytest.raises(InvalidArgumentError, match="no use for '--table-bytes'"):
        LocalCluster(0, workers=1, table_bytes=MIB)


def test_a_system_that_takes_no_room_on_disks_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # As on macOS.
    monkeypatch.delattr(os, "posix_fallocate")
    with (
        pytest.raises(InvalidArgumentError, match="cannot keep rows of tables in files on"),
        LocalCluster(1, table_bytes=MIB, table_folder=tmp_path),
    ):
        pass
