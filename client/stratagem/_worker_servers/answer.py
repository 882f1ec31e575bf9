"""What a worker says of a function that has returned."""

from __future__ import annotations

from typing import NamedTuple


class Answer(NamedTuple):
    """The result of a function, or where it is.

    Attributes:
        payload: The pickled result; empty if it was kept, stays or was not wanted.
        staying_bytes: Its size if it stays on the worker, to be sent or copied from
            there; 0 otherwise.
    """

    payload: bytes = b""
    staying_bytes: int = 0
