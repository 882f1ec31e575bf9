"""The bytes that the variables of a server may take."""

from __future__ import annotations

import threading

from stratagem_proto.errors import ResourceExhaustedError


class VariableMemoryLimit:
    """Counts what variables take, with their slots, and lets them take no more.

    Whoever lets a variable grow takes the bytes first, on any thread, and what it has come to in
    the end is recorded: less, if the growth failed.

    Args:
        limit: Most bytes of all variables together; None for no limit, so that nothing is counted.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._used = 0
        self._taken: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def limit(self) -> int | None:
        """Most bytes of all variables together; None for no limit."""
        return self._limit

    @property
    def is_limited(self) -> bool:
        return self._limit is not None

    @property
    def used(self) -> int:
        """What variables take; 0 where there is no limit."""
        return self._used

    @property
    def left(self) -> int | None:
        """How many bytes are left; None where there is no limit."""
        return None if self._limit is None else max(0, self._limit - self._used)

    def take(self, name: str, nbytes: int) -> None:
        """Let a variable have more bytes.

        Raises:
            ResourceExhaustedError: They are more than are left.
        """
        if self._limit is None:
            return
        with self._lock:
            taken = self._taken.get(name, 0)
            if nbytes > self._limit - self._used:
                raise ResourceExhaustedError(
                    f"{name!r} takes {taken} bytes, with its optimizers' state, and "
                    f"needs {nbytes} more; all variables of this server take "
                    f"{self._used} of the {self._limit} bytes of --variable-bytes. Use "
                    "more servers, limit its rows by DynamicEmbedding(max_bytes=...), "
                    "or start the server with a larger --variable-bytes",
                    variable=name,
                )
            self._set(name, taken + nbytes)

    def record(self, name: str, nbytes: int) -> None:
        """Record how much a variable takes, which may be beyond the limit."""
        if self._limit is not None:
            with self._lock:
                self._set(name, nbytes)

    def _set(self, name: str, nbytes: int) -> None:
        self._used += nbytes - self._taken.pop(name, 0)
        if nbytes:
            self._taken[name] = nbytes
