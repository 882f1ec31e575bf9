"""Results that stay on the worker until their client releases them."""

from __future__ import annotations

from collections.abc import Iterable

from stratagem_proto.errors import NotFoundError
from stratagem_proto.v1 import worker_pb2 as pb

LARGE_BYTES = 1 << 16
"""A result of so many bytes or more is large: asking for it takes less than it does."""


class StayingResults:
    """The large results of one session, pickled, by their functions. Thread-safe.

    Args:
        session_id: The session's.
    """

    def __init__(self, session_id: bytes) -> None:
        self.session_id = session_id
        self._payloads: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._payloads)

    @property
    def nbytes(self) -> int:
        return sum(len(payload) for payload in list(self._payloads.values()))

    def left(self, finished: pb.Finished) -> pb.Finished:
        """Keeps a result if it is large; returns what is sent of it."""
        if len(finished.payload) < LARGE_BYTES:
            return finished
        closure, payload = finished.closure, finished.payload
        self._payloads[closure] = payload
        return pb.Finished(closure=closure, staying_bytes=len(payload))

    def payload(self, closure: int) -> bytes:
        """Returns a result.

        Raises:
            NotFoundError: It is not here.
        """
        if closure not in self._payloads:
            raise NotFoundError(
                f"the result of function {closure} is not here; it was released, or "
                "belongs to another session"
            )
        return self._payloads[closure]

    def release(self, closures: Iterable[int]) -> None:
        """Forgets results."""
        for closure in closures:
            self._payloads.pop(closure, None)
