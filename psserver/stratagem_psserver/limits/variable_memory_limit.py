"""The limit of the memory of a server's variables."""

from __future__ import annotations

import threading

from stratagem_proto.errors import ResourceExhaustedError


class VariableMemoryLimit:
    """Counts the bytes of variables and their slots, and refuses to exceed a limit.

    Code that lets a variable grow first calls `take`, on any thread. Afterwards `record` sets the
    actual size, which is smaller if the growth failed.

    Args:
        limit: Most bytes of all variables together; None for no limit. Then nothing is counted.
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
        """The bytes that are counted; 0 if there is no limit."""
        return self._used

    @property
    def left(self) -> int | None:
        """The bytes that are left; None if there is no limit."""
        return None if self._limit is None else max(0, self._limit - self._used)

    def take(self, name: str, nbytes: int) -> None:
        """Count more bytes for a variable.

        Raises:
            ResourceExhaustedError: Not so many are left.
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
        """Set the bytes of a variable, even if they exceed the limit."""
        if self._limit is not None:
            with self._lock:
                self._set(name, nbytes)

    def _set(self, name: str, nbytes: int) -> None:
        self._used += nbytes - self._taken.pop(name, 0)
        if nbytes:
            self._taken[name] = nbytes
