"""What functions print and log, taken out of the thread that runs them."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from typing import Any, TextIO

from stratagem._core.contexts import Presence
from stratagem_proto.lines import LineSplitter, visible
from stratagem_proto.v1 import worker_pb2 as pb

Emit = Callable[[pb.Output], None]


class _Capture:
    """The output of one function: whole lines, and records of the log."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._lines: dict[pb.OutputStream, LineSplitter] = {}
        self._lock = threading.Lock()

    def write(self, stream: pb.OutputStream, text: str) -> None:
        with self._lock:
            lines = self._lines.setdefault(stream, LineSplitter()).feed(text)
        self._show(stream, lines)

    def log(self, level: int, text: str) -> None:
        self._emit(pb.Output(stream=pb.OUTPUT_STREAM_LOG, level=level, text=text))

    def end(self) -> None:
        if not self._lines:
            return
        with self._lock:
            left = [(stream, lines.end()) for stream, lines in self._lines.items()]
        for stream, lines in left:
            self._show(stream, lines)

    def _show(self, stream: pb.OutputStream, lines: list[str]) -> None:
        for line in lines:
            self._emit(pb.Output(stream=stream, text=visible(line)))


_capture: ContextVar[_Capture | None] = ContextVar("stratagem_capture", default=None)


def captured(emit: Emit) -> AbstractContextManager[None]:
    """Give what the body writes in this thread to a function instead.

    Threads that the body starts write where they would without, unless they are given its context.
    """
    return _Capturing(emit)


class _Capturing(Presence["_Capture | None"]):
    def __init__(self, emit: Emit) -> None:
        self._taken = _Capture(emit)
        super().__init__(_capture, self._taken)

    def __enter__(self) -> None:
        super().__enter__()
        _redirection.begin()

    def __exit__(self, *error: object) -> None:
        _redirection.end()
        super().__exit__(*error)
        self._taken.end()


class _Diverted(io.TextIOBase):
    """A stream of the process, without what belongs to functions."""

    def __init__(self, target: TextIO, stream: pb.OutputStream) -> None:
        self._target = target
        self._stream = stream

    def write(self, text: str) -> int:
        capture = _capture.get()
        if capture is None:
            return self._target.write(text)
        capture.write(self._stream, text)
        return len(text)

    def flush(self) -> None:
        # What diverted the stream may end after the stream is closed.
        with suppress(ValueError):
            self._target.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


class _LastResort(logging.Handler):
    """The handler of records for which the program has none."""

    def __init__(self, other: logging.Handler | None) -> None:
        super().__init__(logging.WARNING)
        self._other = other

    def emit(self, record: logging.LogRecord) -> None:
        capture = _capture.get()
        if capture is not None:
            capture.log(record.levelno, self.format(record))
        elif self._other is not None:
            self._other.handle(record)


class _Redirection:
    """The streams of the process, diverted while any function runs in it."""

    def __init__(self) -> None:
        self._users = 0
        self._before: tuple[TextIO, TextIO, logging.Handler | None] | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._divert()

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._restore()

    def _divert(self) -> None:
        before = sys.stdout, sys.stderr, logging.lastResort
        # Made anew for each function, they are a sixth of what it takes to run one.
        if before != self._before:
            self._before = before
            self._ours = (
                _Diverted(sys.stdout, pb.OUTPUT_STREAM_STDOUT),
                _Diverted(sys.stderr, pb.OUTPUT_STREAM_STDERR),
                _LastResort(logging.lastResort),
            )
        sys.stdout, sys.stderr, logging.lastResort = self._ours

    def _restore(self) -> None:
        """Put back what is still ours: somebody else may have diverted it too."""
        assert self._before is not None, "nothing was diverted"
        stdout, stderr, last_resort = self._ours
        if sys.stdout is stdout:
            sys.stdout = self._before[0]
        if sys.stderr is stderr:
            sys.stderr = self._before[1]
        if logging.lastResort is last_resort:
            logging.lastResort = self._before[2]


_redirection = _Redirection()
