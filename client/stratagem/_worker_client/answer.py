"""What a worker says of a function that has returned."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class ClosureAnswer(NamedTuple):
    """The result of a function, or where it is.

    Attributes:
        payload: The pickled result; empty if it was kept, stays or was not wanted.
        staying_bytes: Its size if it stays on the worker, to be sent or copied from there; 0
            otherwise.
    """

    payload: bytes = b""
    staying_bytes: int = 0


class Reply(Protocol):
    """Takes what becomes of a request to a worker; a `Future` is one.

    Functions whose ends are only taken note of have a lighter one.
    """

    def set_running_or_notify_cancel(self) -> object:
        """Take note that it has begun."""

    def set_result(self, answer: ClosureAnswer, /) -> None:
        """Take the answer."""

    def set_exception(self, error: BaseException, /) -> None:
        """Take note of why there is none."""
