"""Where in its program a thread is, for people who look for the cause of a wait."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from types import FrameType

MAX_CHARACTERS = 200
"""Longer descriptions are cut, since one line of a table has to hold them."""

_INSTALLED = {"site-packages", "dist-packages"}


def whereabouts(thread: int) -> str:
    """Return where a thread is.

    Args:
        thread: Its identifier, as of `threading.get_ident`.

    Returns:
        The innermost line of the user's own program, then the innermost function of a library, for
        instance "train.py:83 in step, in torch.autograd.graph._engine_run_backward". "" for a
        thread that has ended.
    """
    frames = stack_of(thread)
    if not frames:
        return ""
    own = next((frame for frame in frames if not _is_library(frame)), None)
    words = [] if own is None else [_line(own)]
    if frames[0] is not own:
        words.append(f"in {_module(frames[0])}.{frames[0].f_code.co_name}")
    return ", ".join(words)[:MAX_CHARACTERS]


# Of what turns the garbage collector off and on.
_collector = threading.Lock()


def stack_of(thread: int) -> Sequence[FrameType]:
    """Return the frames of a thread, the innermost first; none of a thread that has ended."""
    with _uncollected():
        return [*_outwards(sys._current_frames().get(thread))]


def stacks() -> Mapping[int, Sequence[FrameType]]:
    """Return the frames of all threads that run Python, the innermost first, by their idents."""
    with _uncollected():
        frames = sys._current_frames()
        return {thread: [*_outwards(innermost)] for thread, innermost in frames.items()}


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


@contextmanager
def _uncollected() -> Iterator[None]:
    """Let no garbage collection begin where frames are asked for, each of which takes memory.

    Python 3.11 holds a lock of its own while it lists threads. A collection that begins there, and
    frees a `threading.local`, waits for that lock for ever and lets no thread go on. And it reads
    the frames of another thread where they are: if a collection lets that thread go on meanwhile,
    they are gone, and the process crashes.
    """
    with _collector:
        is_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if is_enabled:
                gc.enable()


def _line(frame: FrameType) -> str:
    name = PurePath(frame.f_code.co_filename).name
    return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "?"))


def _is_library(frame: FrameType) -> bool:
    package = _module(frame).partition(".")[0]
    if package in sys.stdlib_module_names or package.startswith("stratagem"):
        return True
    return not _INSTALLED.isdisjoint(PurePath(frame.f_code.co_filename).parts)
