"""What a queue of closures wants done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Run:
    """Send a closure to a worker, behind those that it has."""

    closure: int
    worker: int


@dataclass(frozen=True)
class Recall:
    """Ask a worker to give a closure back, unless it has begun it."""

    closure: int
    worker: int


@dataclass(frozen=True)
class Cancel:
    """Ask a worker to give a closure up, even if it has begun it."""

    closure: int
    worker: int


@dataclass(frozen=True)
class Abandon:
    """Tell threads that wait for a closure's value that the closure is cancelled."""

    closure: int


@dataclass(frozen=True)
class FailDependent:
    """Tell threads that wait for a closure's value that one which it depends on failed."""

    closure: int
    error: BaseException


@dataclass(frozen=True)
class GiveUp:
    """Tell threads that wait for a closure's value that it is not run again."""

    closure: int
    workers: tuple[int, ...]
    """Those that were lost with it."""


@dataclass(frozen=True)
class Dismiss:
    """Let a worker go that was to leave: it has nothing any more."""

    worker: int


Order: TypeAlias = Run | Recall | Cancel | Abandon | FailDependent | GiveUp | Dismiss
