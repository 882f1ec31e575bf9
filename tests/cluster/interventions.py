"""What is done to a cluster while a test waits for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=run, daemon=True)
    assert threading.current_thread() is threading.main_thread()
    # Processes of pytest-xdist ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        yield thread
        thread.join()
    except KeyboardInterrupt:
        if not failures:
            raise
        raise failures[0] from None
    finally:
        signal.signal(signal.SIGINT, before)
