"""What is done to a cluster while a test waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.interrupts import interrupt, interruptible


@contextmanager
def beside(act: Callable[[], object]) -> Iterator[threading.Thread]:
    """Acts in a thread while a block runs, and joins it at the end.

    If the act fails, its error ends the block at once, which may wait for what now never happens.
    The block runs in the main thread, since only that can be interrupted.

    Args:
        act: For instance kills a worker.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as failure:
            failures.append(failure)
            interrupt()

    thread = threading.Thread(target=run, daemon=True)
    assert threading.current_thread() is threading.main_thread()
    try:
        with interruptible():
            thread.start()
            yield thread
            thread.join()
    except KeyboardInterrupt:
        if not failures:
            raise
        raise failures[0] from None
