"""The log of a server.

A program that runs a server in its own process sees no lines of the log unless it adds a handler to
the logger "stratagem_server"; the command line adds one.

Lines with `stranger=True` are about somebody who has not shown to be of the cluster. Strangers do
not fill a disk: past a budget their lines are left out, and the next one says how many.
"""

from __future__ import annotations

import logging
import os
import sys
import time

import structlog


class LineBudget:
    """A token bucket of lines.

    Args:
        burst: How many lines may come at once.
        per_second: How many may come each second in the long run.
    """

    def __init__(self, burst: int, per_second: float) -> None:
        self._burst, self._per_second = burst, per_second
        self.refill()

    def refill(self) -> None:
        """Forget all lines so far."""
        self._left, self._seen, self._left_out = float(self._burst), 0.0, 0

    def take(self, now: float) -> int | None:
        """Take a line.

        Returns:
            How many lines before this one were left out since the last that was not; None if this
            one is left out, too.
        """
        refilled = self._left + (now - self._seen) * self._per_second
        self._left, self._seen = min(refilled, float(self._burst)), now
        if self._left < 1:
            self._left_out += 1
            return None
        self._left -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out


_PLAIN = logging.getLogger("stratagem_server")
_PLAIN.addHandler(logging.NullHandler())

OF_STRANGERS = LineBudget(burst=100, per_second=5.0)
"""The lines about strangers, of all servers of a process."""


def _spare_of_strangers(
    logger: object, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    if event.pop("stranger", False):
        left_out = OF_STRANGERS.take(time.monotonic())
        if left_out is None:
            raise structlog.DropEvent
        if left_out:
            event["left_out"] = left_out
    return event


LOG: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    _PLAIN,
    processors=[
        structlog.stdlib.filter_by_level,
        _spare_of_strangers,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
)


def to_stderr(as_json: bool = False) -> None:
    """Write the log to stderr: one JSON object per line, or coloured text on a terminal.

    Args:
        as_json: Whether to write JSON on a terminal, too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(sys.stderr.isatty() and not as_json),
            ]
        )
    )
    _PLAIN.addHandler(handler)
    _PLAIN.setLevel(logging.INFO)


def printable(text: str) -> str:
    """Return a text with escapes in place of line ends, control characters and the like."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _on_one_line(
    logger: object, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Let no text that a client has sent end a line, or steer a terminal."""
    return {key: printable(each) if isinstance(each, str) else each for key, each in event.items()}


def _rendering(for_people: bool) -> list[structlog.typing.Processor]:
    if for_people:
        return [_on_one_line, structlog.dev.ConsoleRenderer(colors=not os.environ.get("NO_COLOR"))]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
