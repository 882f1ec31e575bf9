"""How contestants of any kind are asked to move a variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from benchmarks.peers import timing


class Transfer(Protocol):
    """One variable on a server, and its gradient here."""

    def push(self) -> None:
        """Sends the gradient, and returns when the variable has changed."""

    def pull(self) -> None:
        """Gets the variable's value."""

    def close(self) -> None:
        """Frees the server's memory."""


class Transfers:
    """Answers what is asked of a contestant, such as "push 1000000".

    The number is the size of the variable in bytes. There is one variable at a time.
    """

    def __init__(self, create: Callable[[int], Transfer]) -> None:
        """Takes what creates a variable of so many bytes."""
        self._create = create
        self._nbytes = 0
        self._transfer: Transfer | None = None

    def __call__(self, question: str, seconds: float) -> float:
        """Returns the seconds of one push, one pull or both; "tail" is of pushes."""
        kind, nbytes = question.split()
        transfer = self._of_size(int(nbytes))
        if kind == "tail":
            return timing.tail(transfer.push, seconds)
        runs = {"push": transfer.push, "pull": transfer.pull, "both": _both(transfer)}
        return timing.median(runs[kind], seconds)

    def _of_size(self, nbytes: int) -> Transfer:
        if self._transfer is None or nbytes != self._nbytes:
            if self._transfer is not None:
                self._transfer.close()
            self._transfer, self._nbytes = self._create(nbytes), nbytes
        return self._transfer


def _both(transfer: Transfer) -> Callable[[], None]:
    def both() -> None:
        transfer.push()
        transfer.pull()

    return both
