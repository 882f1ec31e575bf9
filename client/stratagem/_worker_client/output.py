"""What functions write on workers, shown here."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress

from stratagem_proto.v1 import worker_pb2 as pb

Show = Callable[[str, str], None]
"""Takes "stdout", "stderr" or the name of a level of the log, and a text."""

_LOG = logging.getLogger("stratagem.worker")

_STREAMS = {pb.OUTPUT_STREAM_STDOUT: "stdout", pb.OUTPUT_STREAM_STDERR: "stderr"}


def stream_of(output: pb.Output) -> str:
    """Return the name of where a function wrote."""
    return _STREAMS.get(output.stream) or logging.getLevelName(output.level)


def labelled(label: str) -> Show:
    """Return what shows each line behind the name of its worker.

    Standard output and standard error go to this program's own, and the log to its logger
    "stratagem.worker".

    Args:
        label: The name, for instance "/job:worker/task:1".
    """

    def show(stream: str, text: str) -> None:
        if stream in _STREAMS.values():
            # One call for the whole line: other workers write at the same time. And this program
            # may have closed its own streams.
            with suppress(OSError, ValueError):
                getattr(sys, stream).write(f"{label} | {text}\n")
            return
        level = logging.getLevelName(stream)
        _LOG.log(level if isinstance(level, int) else logging.INFO, "%s | %s", label, text)

    return show
