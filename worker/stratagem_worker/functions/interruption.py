"""Ending a function from outside of the thread that runs it."""

from __future__ import annotations

import _imp
import _weakrefset
import ctypes
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from importlib import _bootstrap
from types import CodeType
from typing import Generic, TypeVar

from stratagem._core.waiting import Guard, guarded_by
from stratagem_proto.whereabouts import stack_of

Name = TypeVar("Name")
Result = TypeVar("Result")

_GLANCE_SECONDS = 0.0001

# What runs while a module is imported that was not there yet.
_IMPORT = _bootstrap._find_and_load.__code__  # type: ignore[attr-defined]

# The callbacks of weak references are there.
_WEAK_REFERENCES = {_weakrefset.__file__, weakref.__file__}


class Interrupted(BaseException):
    """What this thread runs was given up by another thread.

    As `KeyboardInterrupt`, it is none of the exceptions that programs expect.
    """


class Interruptible(Generic[Name]):
    """What one thread runs and another may interrupt, one thing at a time.

    CPython raises the exception in the thread before one of the next instructions of its Python
    code. That must not be one of our own, so there is no lock here: one that is just being taken
    would stay taken. Nor one of gRPC's, so it is put off there (`stratagem._core.waiting`),
    nor one of a module that is being imported, nor one of a `__del__`, or of a callback of a weak
    reference or of the collector, where Python drops exceptions.
    """

    def __init__(self) -> None:
        self._running: Name | None = None
        self._struck = False
        self._striking = False
        self._guard = Guard(Interrupted)

    def run(self, name: Name, body: Callable[[], Result], given_up: Callable[[], Result]) -> Result:
        """Run something in this thread that can be interrupted by its name.

        `body` may raise `Interrupted` itself; `given_up` makes the result where it was interrupted.
        """
        thread = threading.get_ident()
        try:
            try:
                self._thread, self._struck = thread, False
                self._guard = Guard(Interrupted)
                self._running = name
                with guarded_by(self._guard):
                    return body()
            finally:
                self._wait_out(thread)
        except Interrupted:
            # It may have come just when this was to begin.
            self._wait_out(thread)
            return given_up()

    def _wait_out(self, thread: int) -> None:
        """End the time in which an interruption may arrive."""
        awaited = False
        while True:
            try:
                self._running = None
                while self._striking:
                    time.sleep(_GLANCE_SECONDS)
                if awaited or not self._struck:
                    return
                # In place of one that may not have come. To take that back would have CPython 3.11
                # look out for it at every call from then on: that takes time, and a profiler never
                # comes to an end.
                awaited = True
                _raise(thread)
                while True:
                    pass  # until it comes
            except Interrupted:
                continue

    def interrupt(self, which: Callable[[Name], bool]) -> None:
        """Interrupt what runs, if that is meant; to be called from one thread only.

        Nothing is interrupted twice.
        """
        self._striking = True
        try:
            running = self._running
            if running is not None and which(running) and not self._struck:
                self._struck = True
                interrupt = partial(_raise_if_it_may_come, self._thread)
                while not self._guard.strike(interrupt):
                    time.sleep(_GLANCE_SECONDS)
        finally:
            self._striking = False


def _raise_if_it_may_come(thread: int) -> bool:
    """Raise the exception in a thread, unless it is in the midst of an import or of a `__del__`.

    A module of which the import is interrupted would be run again from its beginning by the next
    import, although others keep what it has told them the first time: some modules cannot be
    imported then any more.
    """
    # No import begins meanwhile.
    _imp.acquire_lock()
    try:
        return not _is_in_the_midst(thread) and _raise_unless_starting(thread)
    finally:
        _imp.release_lock()


def _is_in_the_midst(thread: int) -> bool:
    """Return whether a thread imports something, or runs what drops exceptions."""
    return any(_is_delicate(frame.f_code) for frame in stack_of(thread))


def _is_delicate(code: CodeType) -> bool:
    is_callback = code.co_filename in _WEAK_REFERENCES or any(
        getattr(callback, "__code__", None) is code for callback in gc.callbacks
    )
    return code is _IMPORT or code.co_name == "__del__" or is_callback


def _raise_unless_starting(thread: int) -> bool:
    """Raise the exception in a thread, unless a thread is just being started.

    Before CPython 3.12 a thread that has not run yet has the number of the one that starts it. It
    would take the exception in its place and end, and the other one would wait for ever until it
    has begun.
    """
    if sys.version_info >= (3, 12):
        _raise(thread)
        return True
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        if threading._limbo:  # type: ignore[attr-defined]
            return False
        _raise(thread)
    return True


def _raise(thread: int) -> None:
    """Raise the exception in a thread, before one of its next instructions."""
    what = ctypes.py_object(Interrupted)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), what)
