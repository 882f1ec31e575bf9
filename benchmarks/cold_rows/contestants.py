"""What keeps rows: tables in memory and on a disk, and RocksDB; each in a process of its own."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_FLOAT32, TensorSpec
from stratagem_proto.v1.variable_pb2 import (
    VARIABLE_KIND_MODEL,
    Initializer,
    TableSpec,
    VariableSpec,
)
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.tables.arena import Arena
from stratagem_psserver.tables.direct_file import PAGE, DirectFile, ReadQueue, aligned
from stratagem_psserver.tables.table import Table
from stratagem_psserver.tables.table_disk import TableDisk

COLUMNS, BATCH, EXPONENT = 16, 4096, 1.05
ROW_BYTES = 2 * COLUMNS * 4
FILLED_AT_ONCE = 1 << 15

Keys = npt.NDArray[np.int64]


class Measured(NamedTuple):
    """What a contestant has done.

    Attributes:
        rate: Steps a second.
        most: The most memory, in MB.
        missed: Reads of a step from the disk.
        reads: Random reads of 4 KiB that the same disk gives a second, so many at once.
    """

    rate: float
    most: float
    missed: float
    reads: float


class Rows(Protocol):
    """Rows of values, each with its state of Adagrad."""

    def look_up(self, keys: Keys) -> object:
        """Read the values of keys."""

    def push(self, keys: Keys) -> None:
        """Take a step of Adagrad over distinct keys."""


def _stepped(value: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gradient = value * 0.01 + 0.1
    state = state + gradient.square()
    return value - 0.1 * gradient / (state.sqrt() + 1e-8), state


def _spec(name: str, rows: int) -> VariableSpec:
    return VariableSpec(
        name=name,
        tensor=TensorSpec(dtype=DATA_TYPE_FLOAT32, shape=(rows, COLUMNS)),
        kind=VARIABLE_KIND_MODEL,
        initializer=Initializer(constant=0.0),
        table=TableSpec(),
    )


class TableRows:
    """A table of a server, in memory or on a disk."""

    def __init__(self, rows: int, disk: TableDisk | None) -> None:
        self.disk = disk
        self._table = Table(_spec("rows", rows), disk)
        self._state = Arena(self._table, _spec("rows/sum", rows))
        self._table.attach([self._state])
        self._limit = VariableMemoryLimit()

    def look_up(self, keys: Keys) -> None:
        self._table.value.read(self._table.find(torch.from_numpy(keys)))

    def push(self, keys: Keys) -> None:
        table = self._table
        found = table.find(torch.from_numpy(keys))
        table.make_room(found, self._limit)
        value, state = _stepped(table.value.read(found), self._state.read(found))
        table.store(found, {table.value: value, self._state: state})


class RocksRows:
    """RocksDB through `rocksdict`, with direct input and output, and all memory for its caches."""

    def __init__(self, folder: Path, nbytes: int) -> None:
        from rocksdict import BlockBasedOptions, Cache, Options, Rdict, WriteBatch

        self._batch: Callable[[], Any] = lambda: WriteBatch(raw_mode=True)
        options, blocks = Options(raw_mode=True), BlockBasedOptions()
        blocks.set_block_cache(Cache(nbytes * 3 // 4))
        blocks.set_bloom_filter(10, False)
        blocks.set_cache_index_and_filter_blocks(True)
        options.set_block_based_table_factory(blocks)
        options.set_write_buffer_size(nbytes // 16)
        options.set_max_write_buffer_number(2)
        options.set_use_direct_reads(True)
        options.set_use_direct_io_for_flush_and_compaction(True)
        self._store: Any = Rdict(str(folder / "rocks"), options)

    def look_up(self, keys: Keys) -> torch.Tensor:
        begun = bytes(ROW_BYTES)
        found = self._store[[key.tobytes() for key in keys]]
        joined = bytearray().join([begun if row is None else row for row in found])
        return torch.frombuffer(joined, dtype=torch.float32).view(-1, 2 * COLUMNS)

    def push(self, keys: Keys) -> None:
        rows = torch.cat(_stepped(*self.look_up(keys).split(COLUMNS, 1)), 1).numpy()
        batch = self._batch()
        for key, row in zip(keys, rows, strict=True):
            batch.put(key.tobytes(), row.tobytes())
        self._store.write(batch)


def drawn(rows: int, count: int) -> list[Keys]:
    """Return batches of ids by Zipf's law."""
    generator, power = np.random.default_rng(3), 1 - EXPONENT
    draws = []
    for _ in range(count):
        parts = generator.random(BATCH) * ((rows + 1) ** power - 1) + 1
        draws.append(np.minimum((parts ** (1 / power) - 1).astype(np.int64), rows - 1))
    return draws


def _of(name: str, rows: int, folder: Path) -> Rows:
    nbytes = rows * ROW_BYTES // 4
    if name == "rocksdict":
        return RocksRows(folder, nbytes)
    return TableRows(rows, None if name == "memory" else TableDisk(nbytes, str(folder)))


def measure(name: str, rows: int, steps: int, folder: Path) -> Measured:
    """Step one contestant.

    Rows are first written in the order of their frequency, as they are under a power law.
    """
    torch.set_num_threads(1)
    kept = _of(name, rows, folder)
    names = np.random.default_rng(1).permutation(rows)
    for begin in range(0, rows, FILLED_AT_ONCE):
        kept.push(np.sort(names[begin : begin + FILLED_AT_ONCE]))
    batches = [names[each] for each in drawn(rows, steps + 20)]
    pushed = [np.unique(each) for each in batches]
    for keys in pushed[:20]:
        kept.push(keys)
    disk = kept.disk if isinstance(kept, TableRows) else None
    logs = [store.log for store in disk.stores] if disk else []
    before, began = sum(log.reads for log in logs), time.perf_counter()
    for number in range(20, steps + 20):
        kept.look_up(batches[number])
        kept.push(pushed[number])
    seconds = time.perf_counter() - began
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    missed = (sum(log.reads for log in logs) - before) / steps
    return Measured(steps / seconds, most / 1024, missed, _reads(folder, int(missed)))


def _reads(folder: Path, at_once: int) -> float:
    """Return how many random pages of a file the disk gives a second, so many at once."""
    if not at_once:
        return 0.0
    file, queue, pages = DirectFile(str(folder)), ReadQueue(), 1 << 15
    file.grow(pages * PAGE)
    written, drawn_pages = aligned(1 << 20), np.random.default_rng(2)
    written[:] = 1
    for offset in range(0, file.nbytes, len(written)):
        file.write(offset, written)
    sizes, began = np.full(at_once, PAGE), time.perf_counter()
    for _ in range(100):
        queue.read(file, np.sort(drawn_pages.integers(0, pages, at_once)) * PAGE, sizes)
    return 100 * at_once / (time.perf_counter() - began)


if __name__ == "__main__":
    given = iter(sys.argv[1:])
    print(*measure(next(given), int(next(given)), int(next(given)), Path(next(given))))
