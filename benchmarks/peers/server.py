"""The other end of a contestant: a process that says where it can be reached."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

_START_SECONDS = 60.0


@contextmanager
def server(serve: Callable[..., None], *arguments: Any) -> Iterator[Any]:
    """Runs `serve(connection, *arguments)` in a new process; yields what it sends.

    Args:
        serve: Sends its address and then serves. It ends with the process that asked.
        arguments: Further arguments.

    Raises:
        TimeoutError: It did not send anything.
    """
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(theirs, *arguments), daemon=True)
    process.start()
    try:
        yield _received(mine)
    finally:
        process.terminate()
        process.join()


def _received(connection: Connection) -> Any:
    if not connection.poll(_START_SECONDS):
        raise TimeoutError(f"a server did not start in {_START_SECONDS} s")
    return connection.recv()
