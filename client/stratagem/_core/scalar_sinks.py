"""Functions of a program that get the numbers which it logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

Sink = Callable[[int, Mapping[str, float]], object]
"""Called with the step of numbers, and the numbers by their names."""

_LOG = logging.getLogger("stratagem")


class GuardedSink:
    """A sink whose errors are told, and end nothing."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._failures = 0

    def take(self, step: int, scalars: Mapping[str, float]) -> None:
        """Call it; what it raises goes to the log, the 1st time, the 10th, the 100th and so on."""
        try:
            self._sink(step, scalars)
        except Exception:
            self._failures += 1
            if _is_power_of_ten(self._failures):
                _LOG.warning(
                    "failure %d of %s, which strategy.log_to was given: it may have lost the "
                    "numbers of step %d; training goes on, and it gets those of the next steps",
                    self._failures,
                    _named(self._sink),
                    step,
                    exc_info=True,
                )


def _is_power_of_ten(number: int) -> bool:
    return str(number).strip("0") == "1"


def _named(sink: Any) -> str:
    name = getattr(sink, "__qualname__", None) or type(sink).__qualname__
    return f"the sink {name!r}"
