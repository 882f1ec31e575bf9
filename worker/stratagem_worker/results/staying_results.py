"""Results that stay on the worker until their client releases them."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from stratagem_proto.errors import NotFoundError
from stratagem_proto.v1 import worker_pb2 as pb

LARGE_BYTES = 1 << 16
"""A result of so many bytes or more is large: asking for it takes less than it does."""


class ResultMemory:
    """The memory that results of all sessions may take. Thread-safe.

    Args:
        limit: In bytes.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._changing = threading.Lock()

    def take(self, nbytes: int) -> bool:
        """Return whether there is so much, which is the caller's then."""
        with self._changing:
            fits = nbytes <= self._free
            self._free -= nbytes * fits
            return fits

    def give_back(self, nbytes: int) -> None:
        """Take back what was taken."""
        with self._changing:
            self._free += nbytes


class StayingResults:
    """The large results of one session, pickled, by their functions. Thread-safe.

    Args:
        session_id: The session's.
        memory: Where they are kept, as long as there is room.
    """

    def __init__(self, session_id: bytes, memory: ResultMemory) -> None:
        self.session_id = session_id
        self._memory = memory
        self._payloads: dict[int, bytes] = {}
        self._closed = False
        self._changing = threading.Lock()

    def __len__(self) -> int:
        return len(self._payloads)

    @property
    def nbytes(self) -> int:
        return sum(len(payload) for payload in list(self._payloads.values()))

    def left(self, finished: pb.Finished) -> pb.Finished:
        """Keep a result if it is large; return what is sent of it: else all of it."""
        closure, payload = finished.closure, finished.payload
        if len(payload) < LARGE_BYTES or not self._keep(closure, payload):
            return finished
        return pb.Finished(closure=closure, staying_bytes=len(payload))

    def _keep(self, closure: int, payload: bytes) -> bool:
        with self._changing:
            self._drop(closure)
            if self._closed or not self._memory.take(len(payload)):
                return False
            self._payloads[closure] = payload
            return True

    def payload(self, closure: int) -> bytes:
        """Return a result.

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
        """Forget results."""
        with self._changing:
            for closure in closures:
                self._drop(closure)

    def close(self) -> None:
        """Forget all, and keep none any more."""
        self._closed = True
        self.release(list(self._payloads))

    def _drop(self, closure: int) -> None:
        self._memory.give_back(len(self._payloads.pop(closure, b"")))
