"""Numbers that a program logs, for whoever watches its training."""

from __future__ import annotations

import logging
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle
from typing_extensions import Self

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.protocol import MOST_SCALARS, SCALAR_NAME_CHARACTERS

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
            if str(self._failures).strip("0") == "1":
                sink: Any = self._sink
                name = getattr(sink, "__qualname__", None) or type(sink).__qualname__
                _LOG.warning(
                    "failure %d of the sink %r, which strategy.log_to was given: it may have lost "
                    "the numbers of step %d; training goes on, and it gets those of the next steps",
                    self._failures,
                    name,
                    step,
                    exc_info=True,
                )


class Scalars:
    """The numbers that a program has logged last, and the sinks that get all of them. Thread-safe.

    Who reads the last ones never waits for a device, and never for a sink.
    """

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        # What is on its way from a device, in place of the values of these names.
        self._coming: dict[str, _Coming] = {}
        self._changing = threading.Lock()
        # A sink may log as well.
        self._logging = threading.RLock()
        self._next_step = 0
        self._sinks: OrderedDict[int, GuardedSink] = OrderedDict()

    def log(self, scalars: Mapping[str, float | torch.Tensor], step: int | None = None) -> None:
        """Keep numbers by their names, each in place of the one before, and tell the sinks.

        Raises:
            InvalidArgumentError: A name is empty or too long, or there are too many names.
            InvalidTypeError: A value is no number, or the step no integer.
        """
        given = {_checked(name): _number(name, value) for name, value in scalars.items()}
        with self._logging:
            place = self._next_step if step is None else _whole(step)
            self._keep(given)
            self._next_step = place + 1
            if self._sinks:
                values = {name: float(value) for name, value in given.items()}
                for sink in [*self._sinks.values()]:
                    sink.take(place, dict(values))

    def _keep(self, given: Mapping[str, float | _Coming]) -> None:
        with self._changing:
            names = self._values.keys() | self._coming.keys() | given.keys()
            if len(names) > MOST_SCALARS:
                raise InvalidArgumentError(
                    f"a program logs at most {MOST_SCALARS} numbers under different names, and "
                    f"these would be {len(names)}; use fewer names"
                )
            for name, value in given.items():
                if isinstance(value, _Coming):
                    self._coming[name] = value
                else:
                    self._coming.pop(name, None)
                    self._values[name] = value

    def add(self, sink: Sink) -> RemovableHandle:
        """Have a function called with all that is logged from now on."""
        handle = RemovableHandle(self._sinks)
        self._sinks[handle.id] = GuardedSink(sink)
        return handle

    def latest(self) -> dict[str, float]:
        """Return the last number of each name that has arrived from its device."""
        with self._changing:
            for name in [name for name, coming in self._coming.items() if coming.is_here]:
                self._values[name] = float(self._coming.pop(name))
            return dict(self._values)

    def __deepcopy__(self, memo: object) -> Self:
        # Another strategy has logged nothing yet.
        return type(self)()


class _Coming:
    """A number on its way from a GPU. No thread waits for it unless it is asked for as a float."""

    def __init__(self, value: torch.Tensor) -> None:
        # This copy goes to pinned memory, behind what computes the number.
        self._copy = value.detach().to("cpu", non_blocking=True)
        self._copied = torch.cuda.current_stream(value.device).record_event()

    @property
    def is_here(self) -> bool:
        return bool(self._copied.query())

    def __float__(self) -> float:
        self._copied.synchronize()
        return float(self._copy)


def _checked(name: str) -> str:
    if not isinstance(name, str):
        raise InvalidTypeError(
            f"the name of a logged number is a string, and {name!r:.100} is none; log a dict of "
            "numbers by their names"
        )
    if not 0 < len(name) <= SCALAR_NAME_CHARACTERS:
        raise InvalidArgumentError(
            f"the name of a logged number has 1 to {SCALAR_NAME_CHARACTERS} characters, and "
            f"{name[:40]!r} has {len(name)}"
        )
    return name


def _number(name: str, value: float | torch.Tensor) -> float | _Coming:
    is_one = isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex()
    if isinstance(value, torch.Tensor) and value.is_cuda and is_one:
        return _Coming(value)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidTypeError(
            f"{name!r} is logged as {value!r:.100}, which is no number; log a number, or a tensor "
            "of one element"
        ) from error


def _whole(step: int) -> int:
    try:
        return operator.index(step)
    except TypeError as error:
        raise InvalidTypeError(f"the step of logged numbers is an integer, not {step!r}") from error
