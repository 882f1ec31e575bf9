"""Looking for a notice again and again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stratagem_proto.errors import UnavailableError
from stratagem_proto.notices.notice import Notice

_LOG = logging.getLogger("stratagem")

_LOOK_SECONDS = 0.5


Warn = Callable[[str], object]
"""Logs a warning."""


@contextmanager
def watched(
    notice: Notice | None, tell: Callable[[], object], warn: Warn = _LOG.warning
) -> Iterator[None]:
    """Return a context in which a function is called, once, when a notice is given.

    Args:
        notice: The notice; None for none.
        tell: Called in another thread.
        warn: Called in that thread, too, with what people should know.
    """
    if notice is None:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(
        target=_look, args=(notice, tell, warn, over), name="stratagem-notice", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()


def _look(notice: Notice, tell: Callable[[], object], warn: Warn, over: threading.Event) -> None:
    is_told = False
    while not over.wait(_LOOK_SECONDS):
        try:
            if notice.is_given():
                warn(f"{notice.name} says that this process is to end")
                tell()
                return
            is_told = False
        except UnavailableError as error:
            if not is_told:
                warn(str(error))
            is_told = True
