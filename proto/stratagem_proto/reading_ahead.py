"""Reading what comes next while what was read before is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")

# Reading a page of a file that is in memory, checking it and copying it takes one CPU; two of them
# read an image of 1 GB in 0.6 of the time.
_THREADS = 2


def read_ahead(
    read: Callable[[Item], Value], items: Iterable[Item]
) -> Generator[Value, None, None]:
    """Yield what `read` returns for each item, in their order.

    At most two items are read before they are asked for, so that what is read does not fill memory
    when it is refused. An error is raised in its turn.
    """
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="read-ahead") as threads:
        pending = deque[Future[Value]]()
        try:
            for item in items:
                pending.append(threads.submit(read, item))
                if len(pending) > _THREADS:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
