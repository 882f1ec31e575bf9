"""The store of rows on a disk, compared with plain arrays."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from stratagem_proto.errors import DataLossError
from stratagem_psserver.tables import direct_file
from stratagem_psserver.tables.row_log import Column
from stratagem_psserver.tables.row_store import RowStore
from stratagem_psserver.tables.table_disk import TableDisk
from tests.waiting import eventually

Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint32]
BUDGET = 1 << 16


def column(width: int, seed: int) -> Column:
    """Rows of so many numbers, which tell their row before they are written."""

    def begun(rows: Integers) -> npt.NDArray[np.void]:
        return wholes(begun_numbers(rows, width, seed))

    return Column(4 * width, begun)


def begun_numbers(rows: Integers, width: int, seed: int) -> Numbers:
    numbers: Numbers = (rows[:, None] * 1000 + np.arange(width) + seed).astype(np.uint32)
    return numbers


def wholes(numbers: Numbers) -> npt.NDArray[np.void]:
    flat = np.ascontiguousarray(numbers).reshape(-1)
    return flat.view((np.void, 4 * numbers.shape[1]))


def taken(store: RowStore, of: Column, rows: Integers, scans: bool = False) -> Numbers:
    numbers = np.full((len(rows), of.row_bytes // 4), 7, np.uint32)
    if scans:
        assert not len(store.scan(of, rows, wholes_of(numbers)))
    else:
        store.take(of, rows, wholes_of(numbers))
    return numbers


def wholes_of(numbers: Numbers) -> npt.NDArray[np.void]:
    return numbers.reshape(-1).view((np.void, 4 * numbers.shape[1]))


class Truth:
    """A store and what it has to have, in plain arrays."""

    def __init__(self, disk: TableDisk, name: str, rows: int, widths: list[int]) -> None:
        self.seeds = iter(range(10**6))
        self.columns = dict[Column, Numbers]()
        made = [self._made(width) for width in widths]
        self.store = RowStore(disk, name, [each for each, _ in made])
        self.stored = np.zeros(0, np.bool_)
        self.grow(rows)
        for each, of in made:
            self._add(each, of)

    def _made(self, width: int) -> tuple[Column, tuple[int, int]]:
        seed = next(self.seeds)
        return column(width, seed), (width, seed)

    def _add(self, each: Column, of: tuple[int, int]) -> None:
        self.columns[each] = begun_numbers(np.arange(len(self.stored)), *of)

    def grow(self, rows: int) -> None:
        self.store.grow(rows)
        more = np.arange(len(self.stored), rows)
        self.stored = np.concatenate((self.stored, np.zeros(len(more), np.bool_)))
        for each, numbers in self.columns.items():
            begun = each.begun(more).view(np.uint32).reshape(-1, numbers.shape[1])
            self.columns[each] = np.concatenate((numbers, begun))

    def put(self, rows: Integers, of: list[Column], drawn: np.random.Generator) -> None:
        self.store.reserve(len(rows))
        values = dict[Column, npt.NDArray[np.void]]()
        for each in of:
            width = each.row_bytes // 4
            numbers = drawn.integers(0, 2**32, (len(rows), width), np.uint32)
            self.columns[each][rows] = numbers
            values[each] = wholes(numbers)
        self.store.put(rows, values)
        self.stored[rows] = True

    def check(self, rows: Integers, of: Column, scans: bool) -> None:
        rows = rows[self.stored[rows]]
        assert np.array_equal(taken(self.store, of, rows, scans), self.columns[of][rows])

    def attach(self, width: int) -> None:
        each, of = self._made(width)
        self.store.reserve(0)
        self.store.set_columns([*self.columns, each])
        self._add(each, of)

    def detach(self) -> None:
        if len(self.columns) > 1:
            del self.columns[list(self.columns)[1]]
            self.store.set_columns(list(self.columns))

    def drop(self, first: int) -> None:
        self.store.drop(first)
        self.stored[first:] = False
        for each, numbers in self.columns.items():
            begun = each.begun(np.arange(first, len(numbers)))
            numbers[first:] = begun.view(np.uint32).reshape(-1, numbers.shape[1])


THREADS = 3


def use(truth: Truth, thread: int, steps: int, drawn: np.random.Generator) -> None:
    """Read and write rows that no other thread writes."""
    for _ in range(steps):
        count, most = int(drawn.integers(1, 400)), len(truth.stored)
        rows = (drawn.random(count) ** 3 * most).astype(np.int64) // THREADS * THREADS + thread
        rows = rows[rows < most]
        columns = list(truth.columns)
        some = [each for each in columns if drawn.random() < 0.6]
        match int(drawn.integers(6)):
            case 5:
                truth.store.announce(drawn.integers(0, 2 * most, count))
            case 0 | 1:
                truth.put(np.unique(rows), columns, drawn)
            case 2:
                truth.put(np.unique(rows), some or columns[:1], drawn)
            case _ as kind:
                truth.check(rows, columns[int(drawn.integers(len(columns)))], kind == 3)


def change(truths: list[Truth], drawn: np.random.Generator) -> None:
    """Do to one of the tables what nobody does while others use it."""
    truth = truths[int(drawn.integers(len(truths)))]
    match int(drawn.integers(5)):
        case 0:
            truth.grow(len(truth.stored) + int(drawn.integers(1, 300)))
        case 1:
            truth.attach(int(drawn.integers(1, 9)))
        case 2:
            truth.detach()
        case 3:
            truth.drop(int(drawn.integers(len(truth.stored) * 2 // 3, len(truth.stored))))
        case 4:
            # What was announced may still be coming.
            with truth.store._disk.lock:
                disk_is_consistent(truth.store)


def disk_is_consistent(store: RowStore) -> None:
    """What is counted is what is there."""
    # A thread may be reading ahead.
    with store._disk.lock:
        where, log = store._where, store.log
        inside = np.flatnonzero(where >= 0)
        assert np.array_equal(store._row_of[where[inside]], inside)
        assert np.count_nonzero(store.heat) == len(inside) == store.slots - store.free
        assert store._dirty == np.count_nonzero(store._home[where[inside]] < 0)
        homes = store._home[where[inside]].astype(np.int64)
        on_disk = -2 - where[where <= -2].astype(np.int64)
        addresses = np.concatenate((on_disk, homes[homes >= 0]))
        assert len(np.unique(addresses)) == len(addresses)
        live = np.bincount(addresses // log._stride, minlength=len(log._live))
        assert np.array_equal(live, log._live)
        assert np.array_equal(np.sort(log._free), np.flatnonzero(log._is_free))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget, turns", [(1 << 12, 5), (BUDGET, 15)], ids=["tiny", "small"])
def test_threads_that_use_tables_of_one_disk_find_what_they_have_written(
    tmp_path: Path, seed: int, budget: int, turns: int
) -> None:
    disk, drawn = TableDisk(budget, str(tmp_path)), np.random.default_rng(seed)
    truths = [Truth(disk, f"t{number}", 2000, [3 + 5 * number, 4]) for number in range(3)]
    with ThreadPoolExecutor(THREADS * len(truths)) as threads:
        for _ in range(turns):
            jobs = [
                threads.submit(use, truth, thread, 12, drawn.spawn(1)[0])
                for truth in truths
                for thread in range(THREADS)
            ]
            for job in jobs:
                job.result()
            change(truths, drawn)
            assert disk.resident_bytes <= budget + sum(4 * 64 for _ in truths)
    disk._reader.shutdown()
    for truth in truths:
        disk_is_consistent(truth.store)
        for each in truth.columns:
            for scans in (True, False):
                truth.check(np.arange(len(truth.stored)), each, scans)
    assert disk.counts.missed and disk.counts.changed_bytes


@pytest.fixture
def disk(tmp_path: Path) -> TableDisk:
    return TableDisk(BUDGET, str(tmp_path))


ROWS = 20_000


@pytest.fixture
def truth(disk: TableDisk) -> Truth:
    """A table of which a twentieth is in memory."""
    truth = Truth(disk, "t", ROWS, [8, 8])
    drawn = np.random.default_rng(0)
    for begin in range(0, ROWS, 1000):
        truth.put(np.arange(begin, begin + 1000), list(truth.columns), drawn)
    return truth


def test_random_updates_take_bounded_room_and_bounded_writes(truth: Truth, disk: TableDisk) -> None:
    drawn, columns = np.random.default_rng(1), list(truth.columns)
    begun, changed = truth.store.log.written_bytes, disk.counts.changed_bytes
    for _ in range(600):
        truth.put(np.unique(drawn.integers(0, ROWS, 500)), columns, drawn)
        assert disk.file_bytes < 2.5 * ROWS * 80 + 12 * truth.store.log.segment_bytes
    written = truth.store.log.written_bytes - begun
    assert written < 3 * (disk.counts.changed_bytes - changed)
    disk_is_consistent(truth.store)
    truth.check(np.arange(ROWS), columns[1], True)


def test_rows_that_are_only_read_are_never_written_again(truth: Truth) -> None:
    drawn, column = np.random.default_rng(1), next(iter(truth.columns))
    for _ in range(5):
        truth.check(drawn.integers(0, ROWS, 5000), column, False)
    written = truth.store.log.written_bytes
    for _ in range(20):
        truth.check(drawn.integers(0, ROWS, 5000), column, False)
    assert truth.store.log.written_bytes == written


def test_what_is_used_often_stays_in_memory(truth: Truth, disk: TableDisk) -> None:
    drawn, column = np.random.default_rng(1), next(iter(truth.columns))
    hot = np.arange(0, ROWS, 100)
    for _ in range(10):
        truth.check(hot, column, False)
        truth.check(drawn.integers(0, ROWS, 300), column, False)
    missed = disk.counts.missed
    truth.check(np.arange(ROWS), column, True)
    truth.check(hot, column, False)
    assert disk.counts.missed == missed


def test_rows_that_were_announced_are_in_memory_when_they_are_asked_for(
    truth: Truth, disk: TableDisk
) -> None:
    some = np.flatnonzero(truth.store._where <= -2)[:100]
    truth.store.announce(np.append(some, [ROWS, 5 * ROWS]))
    eventually(lambda: bool((truth.store._where[some] >= 0).all()))
    truth.check(some, next(iter(truth.columns)), False)
    assert disk.counts.missed == 0


def test_many_announced_rows_leave_most_of_those_in_memory(truth: Truth, disk: TableDisk) -> None:
    hot, of = np.flatnonzero(truth.store._where >= 0), next(iter(truth.columns))
    for _ in range(5):
        truth.check(hot, of, False)
    truth.store.announce(np.arange(ROWS))
    disk._reader.submit(int).result()
    truth.check(hot, of, False)
    assert disk.counts.missed < len(hot) / 2


def test_rows_that_are_announced_while_state_comes_and_goes_are_what_they_were(
    truth: Truth, disk: TableDisk
) -> None:
    for number in range(150):
        truth.store.announce(np.arange(number, ROWS, 200))
        truth.attach(2) if number % 2 else truth.detach()
    disk._reader.shutdown()
    disk_is_consistent(truth.store)
    for each in truth.columns:
        truth.check(np.arange(ROWS), each, False)


def cold_row(store: RowStore) -> int:
    return int(np.flatnonzero(store._where <= -2)[0])


def place(store: RowStore, row: int) -> int:
    """Where the record of a row is in the file."""
    address = -2 - int(store._where[row])
    log = store.log
    return (
        address // log._stride * log.segment_bytes + address % log._stride * log.layout.record_bytes
    )


def test_a_torn_record_is_an_error_and_no_row(truth: Truth) -> None:
    store, row = truth.store, cold_row(truth.store)
    where = place(store, row)
    page = direct_file.aligned(direct_file.PAGE)
    begin = where // len(page) * len(page)
    os.preadv(store.log._file.number, [memoryview(page.data)], begin)
    page[where - begin + 40] ^= 1
    os.pwrite(store.log._file.number, page.data, begin)
    require_loss(truth, row)


def test_the_record_of_another_row_is_an_error_and_no_row(truth: Truth) -> None:
    row = cold_row(truth.store)
    truth.store._where[row] = truth.store._where[row + 1]
    require_loss(truth, row)


def test_what_a_segment_had_before_is_an_error_and_no_row(truth: Truth) -> None:
    row = cold_row(truth.store)
    address = -2 - int(truth.store._where[row])
    truth.store.log._generations[address // truth.store.log._stride] += 1
    require_loss(truth, row)


def test_pages_that_were_never_written_are_an_error_and_no_row(truth: Truth) -> None:
    row = cold_row(truth.store)
    where = place(truth.store, row) // direct_file.PAGE * direct_file.PAGE
    os.pwrite(truth.store.log._file.number, direct_file.aligned(2 * direct_file.PAGE).data, where)
    require_loss(truth, row)


def require_loss(truth: Truth, row: int) -> None:
    column = next(iter(truth.columns))
    for scans in (True, False):
        with pytest.raises(DataLossError, match=r"rows of 't': what it returned is not what was"):
            taken(truth.store, column, np.array([row]), scans)
    # Nor is any other, from now on.
    with pytest.raises(DataLossError, match="no table of this server is read or changed"):
        truth.put(np.array([row]), list(truth.columns), np.random.default_rng(0))


def test_a_torn_record_is_not_moved_elsewhere(truth: Truth) -> None:
    drawn, columns = np.random.default_rng(1), list(truth.columns)
    row = cold_row(truth.store)
    where = place(truth.store, row) // direct_file.PAGE * direct_file.PAGE
    os.pwrite(truth.store.log._file.number, direct_file.aligned(2 * direct_file.PAGE).data, where)
    others = np.setdiff1d(np.arange(ROWS), np.arange(row, row + 200))
    with pytest.raises(DataLossError, match="what it returned is not what was written"):
        for _ in range(600):
            truth.put(np.unique(drawn.choice(others, 500)), columns, drawn)


@pytest.mark.parametrize("flag, what", [(os.O_WRONLY, "read"), (os.O_RDONLY, "write")])
def test_a_disk_that_fails_ends_all_use_of_it(
    truth: Truth, tmp_path: Path, flag: int, what: str
) -> None:
    drawn, columns = np.random.default_rng(1), list(truth.columns)
    other = os.open(tmp_path / "other", flag | os.O_CREAT)
    kept = os.dup(truth.store.log._file.number)
    try:
        os.dup2(other, truth.store.log._file.number)
        with pytest.raises(DataLossError, match=f"could not {what} rows of 't': Bad file"):
            for _ in range(20):
                if what == "read":
                    truth.check(drawn.integers(0, ROWS, 100), columns[0], False)
                else:
                    truth.put(np.unique(drawn.integers(0, ROWS, 500)), columns, drawn)
    finally:
        os.dup2(kept, truth.store.log._file.number)
        os.close(kept)
        os.close(other)
    with pytest.raises(DataLossError, match=f"could not {what} rows of 't': Bad file"):
        truth.check(np.arange(1), columns[0], False)


def test_reads_without_the_kernels_queue_give_the_same_bytes(
    disk: TableDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_file, "_CALLS", None)
    truth = Truth(disk, "t", 5000, [8, 8])
    drawn = np.random.default_rng(0)
    truth.put(np.arange(5000), list(truth.columns), drawn)
    for _ in range(5):
        for each in truth.columns:
            truth.check(drawn.integers(0, 5000, 2000), each, False)
    assert disk.counts.missed


def test_readers_and_scans_find_rows_that_are_moved_meanwhile(truth: Truth) -> None:
    ended, columns = threading.Event(), list(truth.columns)
    still = np.arange(0, ROWS, 2)

    def read(scans: bool) -> None:
        drawn = np.random.default_rng(int(scans))
        while not ended.is_set():
            truth.check(drawn.choice(still, 500), columns[scans], scans)

    def guarded(work: Callable[[bool], None], scans: bool) -> None:
        try:
            work(scans)
        finally:
            ended.set()

    with ThreadPoolExecutor(3) as threads:
        jobs = [threads.submit(guarded, read, scans) for scans in (False, True)]
        drawn = np.random.default_rng(7)
        for _ in range(300):
            if ended.is_set():
                break
            truth.put(np.unique(drawn.integers(0, ROWS // 2, 300)) * 2 + 1, columns, drawn)
        ended.set()
        for job in jobs:
            job.result()
    disk_is_consistent(truth.store)
