"""A log that is written no more, because a replica gets another state."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from stratagem_proto.errors import UnavailableError
from stratagem_proto.v1.log_pb2 import LogRecord
from stratagem_psserver.log.log import Log


class FailingWriter:
    """Writes nothing."""

    def write(self, first: int, entries: Sequence[object]) -> None:
        raise OSError(errno.EIO, "the disk fails")


def test_whoever_waits_for_a_log_that_is_stopped_is_told() -> None:
    complaints: list[Any] = []

    async def stopped() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
        log = Log(FailingWriter(), "/job:ps/task:0", 0)
        log.append(LogRecord(mark=True))
        waiting = asyncio.ensure_future(log.on_disk(1))
        while not log.report().failure:
            await asyncio.sleep(0.01)
        log.append(LogRecord(mark=True))
        log.stop()
        log.join()
        with pytest.raises(UnavailableError, match="writes its log no more"):
            await waiting
        for ask in (log.durable, log.caught_up):
            with pytest.raises(UnavailableError, match="writes its log no more"):
                await ask()
        with pytest.raises(UnavailableError, match="writes its log no more"):
            await log.on_disk(2)

    asyncio.run(stopped())
    assert not complaints


def test_a_record_that_comes_just_before_the_end_of_a_log_is_not_written() -> None:
    complaints: list[Any] = []

    async def stopped() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
        log = Log(FailingWriter(), "/job:ps/task:0", 0)
        log.append(LogRecord(mark=True))
        log.stop()
        log.join()
        # The log begins to write in the next turn of the loop.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(stopped())
    assert not complaints


def test_a_log_that_is_stopped_while_its_disk_fails_leaves_no_error_unseen() -> None:
    complaints: list[Any] = []
    failing = threading.Event()

    class SlowWriter:
        def write(self, first: int, entries: Sequence[object]) -> None:
            failing.wait()
            raise OSError(errno.EIO, "the disk fails")

    async def stopped() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
        log = Log(SlowWriter(), "/job:ps/task:0", 0)
        log.append(LogRecord(mark=True))
        while not log.report().writing_seconds:
            await asyncio.sleep(0.01)
        log.stop()
        failing.set()
        log.join()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(stopped())
    gc.collect()
    assert not complaints
