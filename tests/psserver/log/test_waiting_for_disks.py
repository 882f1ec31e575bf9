"""How answers wait for a disk: alone, together, and when it is slow or fails."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import closing
from typing import Any

import pytest

from stratagem_proto.errors import UnavailableError
from stratagem_proto.v1.log_pb2 import LogRecord
from stratagem_psserver.log.log import Log
from stratagem_storage.log import Entry

# So long that no machine is taken for slower.
_PATIENCE = 60.0


class FakeDisk:
    """A disk on which records are once it has taken them.

    Attributes:
        records: The number that each record has in place of its time.
        batches: How many records each batch had.
        failure: The number of the error that it raises, or 0.
        open: While it is not set, the disk hangs.
    """

    def __init__(self) -> None:
        self.records: list[int] = []
        self.batches: list[int] = []
        self.failure = 0
        self.open = threading.Event()
        self.open.set()

    def write(self, first: int, entries: Sequence[Entry]) -> None:
        assert self.open.wait(_PATIENCE)
        if self.failure:
            raise OSError(self.failure, os.strerror(self.failure))
        assert first == len(self.records) + 1
        self.records += [LogRecord.FromString(each.message).permit.step for each in entries]
        self.batches.append(len(entries))


def with_log(work: Callable[[Log, FakeDisk], Coroutine[Any, Any, None]]) -> None:
    """Runs something with a log on a disk."""

    async def run() -> None:
        disk = FakeDisk()
        log = Log(disk, "/job:ps/task:0", 0)
        try:
            await asyncio.wait_for(work(log, disk), _PATIENCE)
        finally:
            log.stop()
            disk.open.set()
            log.join()

    asyncio.run(run())


def add(log: Log, number: int) -> None:
    record = LogRecord()
    record.permit.step = number
    log.append(record)


def ends_at_once(answer: Awaitable[None]) -> bool:
    """Whether an answer leaves without a turn of the loop."""
    with closing(answer.__await__()) as steps:
        return next(steps, None) is None


async def know_to_be_fast(log: Log) -> None:
    """Has records written until an answer does not leave the loop for the disk."""
    for number in range(10_000):
        add(log, number)
        if ends_at_once(log.durable()):
            return
        await log.on_disk(log.position)
    raise AssertionError("no answer has stood still for a disk that takes no time")


def test_an_answer_that_is_alone_waits_without_a_turn_of_the_loop() -> None:
    async def work(log: Log, disk: FakeDisk) -> None:
        await know_to_be_fast(log)
        assert log.written == log.position == len(disk.records)

    with_log(work)


def test_a_disk_that_hangs_does_not_stop_the_loop() -> None:
    async def work(log: Log, disk: FakeDisk) -> None:
        await know_to_be_fast(log)
        disk.open.clear()
        add(log, 0)
        answer = asyncio.ensure_future(log.durable())
        # The disk goes on only after many turns of the loop.
        for _ in range(100):
            await asyncio.sleep(0)
        assert not answer.done()
        assert log.report().writing_seconds > 0.0
        disk.open.set()
        await answer
        assert log.written == log.position

    with_log(work)


def test_answers_that_come_together_share_a_wait_for_the_disk() -> None:
    async def work(log: Log, disk: FakeDisk) -> None:
        await know_to_be_fast(log)
        disk.open.clear()
        begun = len(disk.records)

        async def answer(number: int) -> None:
            add(log, number)
            await log.durable()

        answers = [asyncio.ensure_future(answer(number)) for number in range(500)]
        # All have begun, and the first may be under way.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        batches = len(disk.batches)
        disk.open.set()
        await asyncio.gather(*answers)
        assert disk.records[begun:] == [*range(500)]
        assert len(disk.batches) - batches <= 2

    with_log(work)


def test_records_are_in_the_order_of_their_changes_while_many_wait() -> None:
    async def work(log: Log, disk: FakeDisk) -> None:
        count = 0

        async def answer() -> None:
            nonlocal count
            for turns in range(60):
                for _ in range(turns % 3):
                    await asyncio.sleep(0)
                count += 1
                add(log, count)
                position = log.position
                await log.durable()
                assert len(disk.records) >= position

        await asyncio.gather(*(answer() for _ in range(12)))
        assert disk.records == [*range(1, count + 1)]

    with_log(work)


@pytest.mark.parametrize("failure", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("others", [0, 4], ids=["alone", "together"])
def test_answers_tell_of_a_disk_that_fails_however_they_wait(failure: int, others: int) -> None:
    async def work(log: Log, disk: FakeDisk) -> None:
        await know_to_be_fast(log)
        before, disk.failure = len(disk.records), failure
        answers = []
        for number in range(others + 1):
            add(log, number)
            answers.append(asyncio.ensure_future(log.durable()))
        for answer in answers:
            with pytest.raises(UnavailableError, match=os.strerror(failure)):
                await answer
        with pytest.raises(UnavailableError, match="Nothing is lost"):
            await log.caught_up()
        disk.failure = 0
        await log.on_disk(log.position)
        assert disk.records[before:] == [*range(others + 1)]
        await log.durable()
        assert not log.report().failure

    with_log(work)


def test_a_log_that_is_closed_has_all_on_disk() -> None:
    async def work(log: Log, disk: FakeDisk) -> None:
        await know_to_be_fast(log)
        for number in range(100):
            record = LogRecord()
            record.permit.step = number
            log.append(record, is_awaited=False)
        await log.close()
        assert disk.records[-100:] == [*range(100)]

    with_log(work)
