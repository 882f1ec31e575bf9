"""Servers with tables in files whose memory, disk or speed the system limits."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

import stratagem
from benchmarks.harness.limits import (
    CannotLimit,
    ControlGroup,
    Disk,
    disk_of,
    memory_of,
    reads_of,
)
from stratagem import ClusterSpec, ParameterServerStrategy
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_deploy.watching.asking import ServerPlace, ask
from stratagem_deploy.watching.doctor import findings
from stratagem_proto.errors import DataLossError, InvalidArgumentError, ResourceExhaustedError
from stratagem_proto.v1.status_pb2 import TableFilesStatus
from tests.conftest import TOKEN
from tests.psserver.process import ServerProcess, serving
from tests.psserver.wire import RawClient, status_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

MIB = 1 << 20
LIMIT = 384 * MIB
COLUMNS = 512
ROW_BYTES = 2 * COLUMNS * 4
ROWS = 4 * LIMIT // ROW_BYTES
AT_ONCE = 2048


@pytest.fixture
def limits() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def limited(limits: ExitStack, nbytes: int) -> ControlGroup:
    try:
        return limits.enter_context(memory_of(nbytes))
    except CannotLimit as reason:
        pytest.skip(str(reason))


def mounted(limits: ExitStack, folder: Path, nbytes: int) -> Disk:
    try:
        return limits.enter_context(disk_of(folder, nbytes))
    except CannotLimit as reason:
        pytest.skip(str(reason))


@contextmanager
def served(
    folder: Path, table_bytes: int, *options: str, groups: Sequence[ControlGroup] = ()
) -> Iterator[ServerProcess]:
    """Run a server that keeps few rows in memory, and little of requests."""
    folder.mkdir(exist_ok=True)
    token = folder / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    given = ("--bind", "127.0.0.1:0", "--token-file", str(token), "--table-bytes", str(table_bytes))
    staged = ("--staged-bytes", str(48 * MIB))
    with serving(folder, *given, *staged, *options, groups=groups) as server:
        yield server


@contextmanager
def strategy_of(*servers: ServerProcess) -> Iterator[ParameterServerStrategy]:
    spec = ClusterSpec({"ps": [server.address for server in servers], "chief": ["127.0.0.1:1"]})
    resolver = SimpleClusterResolver(spec, task_type="chief", task_id=0)
    resolver.cluster_token = TOKEN
    # A client repeats for so long what a full disk refuses.
    with ParameterServerStrategy(resolver, connect_seconds=5.0) as strategy:
        yield strategy


def table_files(server: ServerProcess) -> TableFilesStatus:
    with RawClient(server.address, TOKEN) as client:
        return status_of(client).parameter_server.table_files


class Trainer:
    """Steps of a table each row of which moves to a place of its own."""

    def __init__(self, strategy: ParameterServerStrategy, rows: int, columns: int) -> None:
        self.strategy, self._columns = strategy, columns
        with strategy.scope():
            self.table = stratagem.nn.Embedding(rows, columns)
            torch.nn.init.constant_(self.table.weight, 0.5)
        adagrad = torch.optim.Adagrad(self.table.parameters(), lr=0.1)
        self.optimizer = stratagem.DistributedOptimizer(adagrad)

    def _step(self, keys: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss_of(keys, self.table(keys)).backward()
        self.optimizer.step()

    def step(self, keys: torch.Tensor) -> None:
        self.strategy.run(self._step, args=(keys,))

    def values(self, keys: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            values: torch.Tensor = self.strategy.run(lambda: self.table(keys).clone())
        return values


def loss_of(keys: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    wanted = torch.sin(keys[:, None] * torch.arange(1, rows.shape[1] + 1))
    return (rows - wanted).square().sum()


def expected(batches: Sequence[torch.Tensor], keys: torch.Tensor, columns: int) -> torch.Tensor:
    """Return what torch alone makes of the rows of some ascending keys."""
    rows = torch.nn.Parameter(torch.full((len(keys), columns), 0.5))
    adagrad = torch.optim.Adagrad([rows], lr=0.1)
    for batch in batches:
        found = torch.isin(keys, batch).nonzero().squeeze(1)
        adagrad.zero_grad()
        loss_of(keys[found], torch.nn.functional.embedding(found, rows, sparse=True)).backward()
        with torch.sparse.check_sparse_tensor_invariants(False):
            adagrad.step()
    return rows.detach()


def drawn(count: int, rows: int) -> list[torch.Tensor]:
    """Return batches of ids by Zipf's law, with the exponent 1.05."""
    power, generator = 1 - 1.05, torch.Generator().manual_seed(1)
    parts = torch.rand(count, AT_ONCE, dtype=torch.float64, generator=generator)
    ranks = ((parts * ((rows + 1) ** power - 1) + 1) ** (1 / power) - 1).long().clamp(max=rows - 1)
    return [(each * 7919 % rows).unique() for each in ranks]


@pytest.mark.long
def test_a_table_four_times_the_memory_of_its_server_is_trained_saved_and_restored(
    tmp_path: Path, limits: ExitStack
) -> None:
    group = limited(limits, LIMIT)
    batches = [*torch.arange(ROWS).split(AT_ONCE), *drawn(30, ROWS)]
    sample = torch.cat([torch.arange(0, ROWS, 997), batches[-1][::20]]).unique()
    wanted = expected(batches, sample, COLUMNS)
    with served(tmp_path / "one", 48 * MIB, groups=[group]) as server:
        with strategy_of(server) as strategy:
            trainer = Trainer(strategy, ROWS, COLUMNS)
            for batch in batches:
                trainer.step(batch)
            assert torch.equal(trainer.values(sample), wanted)
            strategy.save(tmp_path / "saved")
        assert table_files(server).file_bytes >= ROWS * ROW_BYTES == 4 * LIMIT
    assert LIMIT // 2 < group.most_memory <= LIMIT
    second = limited(limits, LIMIT)
    with (
        served(tmp_path / "one", 48 * MIB, groups=[group]) as server,
        served(tmp_path / "two", 48 * MIB, "--task", "1", groups=[second]) as other,
        strategy_of(server, other) as strategy,
    ):
        trainer = Trainer(strategy, ROWS, COLUMNS)
        strategy.restore(tmp_path / "saved").assert_consumed()
        assert torch.equal(trainer.values(sample), wanted)


WIDTH, KEYS = 64, 100_000
# Rows of all keys and their state have 51 MB.
DISK, ROOM = 160 * MIB, 30 * MIB


def test_a_full_disk_refuses_a_step_changes_nothing_and_goes_on_once_there_is_room(
    tmp_path: Path, limits: ExitStack
) -> None:
    disk = mounted(limits, tmp_path, DISK)
    ballast = disk.folder / "ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(disk.folder).free - ROOM))
    batches, done = torch.arange(KEYS).split(AT_ONCE), list[torch.Tensor]()
    options = ("--table-folder", str(disk.folder))
    with served(tmp_path / "one", 4 * MIB, *options) as server, strategy_of(server) as strategy:
        trainer = Trainer(strategy, KEYS, WIDTH)
        with pytest.raises(ResourceExhaustedError, match=str(disk.folder)):
            for batch in batches:
                trainer.step(batch)
                done.append(batch)
        sample = torch.arange(0, KEYS, 97)
        assert torch.equal(trainer.values(sample), expected(done, sample, WIDTH))
        strategy.save(tmp_path / "saved")
        ballast.unlink()
        for batch in (*batches[len(done) :], *drawn(10, KEYS)):
            trainer.step(batch)
            done.append(batch)
        assert torch.equal(trainer.values(sample), expected(done, sample, WIDTH))


def test_a_disk_that_fails_ends_the_use_of_tables_and_the_log_has_all_that_was_acknowledged(
    tmp_path: Path, limits: ExitStack
) -> None:
    disk = mounted(limits, tmp_path, DISK)
    (tmp_path / "log").mkdir()
    kept = ("--durability", "log", "--durability-folder", str(tmp_path / "log"))
    options, done = ("--table-folder", str(disk.folder), *kept), list[torch.Tensor]()
    sample = torch.arange(0, KEYS, 97)
    with served(tmp_path / "one", 4 * MIB, *options) as server, strategy_of(server) as strategy:
        trainer = Trainer(strategy, KEYS, WIDTH)
        for batch in torch.arange(KEYS).split(AT_ONCE):
            trainer.step(batch)
            done.append(batch)
        disk.shrink(4 * MIB)
        with pytest.raises(DataLossError, match=str(disk.folder)) as lost:
            for batch in drawn(100, KEYS):
                trainer.step(batch)
                done.append(batch)
        with pytest.raises(DataLossError, match=str(disk.folder)):
            trainer.values(sample[:1])
        assert str(lost.value).partition(": ")[2] in server.log
    (tmp_path / "other").mkdir()
    options = ("--table-folder", str(tmp_path / "other"), *kept)
    with served(tmp_path / "one", 4 * MIB, *options) as server, strategy_of(server) as strategy:
        trainer = Trainer(strategy, KEYS, WIDTH)
        assert torch.equal(trainer.values(sample), expected(done, sample, WIDTH))


def test_a_server_does_not_start_on_a_disk_that_is_full_or_cannot_be_written(
    tmp_path: Path, limits: ExitStack
) -> None:
    disk = mounted(limits, tmp_path, 16 * MIB)
    ballast = disk.folder / "ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(disk.folder).free - MIB // 2))
    place = re.escape(repr(str(disk.folder)))
    with (
        pytest.raises(InvalidArgumentError, match=f"tables in {place}.*No space left on device"),
        LocalCluster(1, table_bytes=4 * MIB, table_folder=disk.folder),
    ):
        pass
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(disk.folder)], check=True)
    with (
        pytest.raises(InvalidArgumentError, match=f"tables in {place}.*Read-only file system"),
        LocalCluster(1, table_bytes=4 * MIB, table_folder=disk.folder),
    ):
        pass


def test_a_slow_disk_makes_steps_slow_changes_none_of_them_and_is_named_by_the_doctor(
    tmp_path: Path, limits: ExitStack
) -> None:
    disk = mounted(limits, tmp_path, DISK)
    try:
        slow = limits.enter_context(reads_of(disk.device, 200))
    except CannotLimit as reason:
        pytest.skip(str(reason))
    options = ("--table-folder", str(disk.folder))
    with (
        served(tmp_path / "one", 4 * MIB, *options, groups=[slow]) as server,
        strategy_of(server) as strategy,
    ):
        trainer = Trainer(strategy, KEYS, WIDTH)
        draw = torch.Generator().manual_seed(1)
        some = [torch.randint(KEYS, (60,), generator=draw).unique() for _ in range(25)]
        batches = [*torch.arange(KEYS).split(AT_ONCE), *some]
        for batch in batches:
            trainer.step(batch)
        sample = torch.arange(0, KEYS, 997)
        assert torch.equal(trainer.values(sample), expected(batches, sample, WIDTH))
        answers = ask([ServerPlace(server.address, "ps:0")], TOKEN, 30.0)
    slowness = [each.what for each in findings(answers, 2.0) if "reads a second" in each.what]
    assert len(slowness) == 1 and str(disk.folder) in slowness[0]
