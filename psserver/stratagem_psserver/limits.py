"""Limits of memory, for requests, for variables and for caches; and of the time that work takes."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Generic, TypeVar

import torch

from stratagem_proto.errors import ResourceExhaustedError, StratagemError
from stratagem_proto.v1 import status_pb2 as pb
from stratagem_proto.wire.tensors import is_out_of_memory
from stratagem_psserver.environment import Clock
from stratagem_rpc.shares import Shares, share_of


@contextmanager
def allocating(advice: str) -> Iterator[None]:
    """Turn errors of the block that say that there is no memory into a typed error.

    Raises:
        ResourceExhaustedError: There is no memory.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_other_than_memory(error):
            raise
        raise out_of_memory(advice) from error


def is_other_than_memory(error: RuntimeError | MemoryError) -> bool:
    """Return whether an error does not say that there is no memory, or says it by our own class."""
    return isinstance(error, ResourceExhaustedError) or not is_out_of_memory(error)


def out_of_memory(advice: str) -> ResourceExhaustedError:
    """Return the error of a machine that has no memory left."""
    return ResourceExhaustedError(f"the machine of the server is out of memory; {advice}")


def require_memory(sizes: Sequence[int]) -> None:
    """Check that the machine has memory, by taking and freeing it.

    Raises:
        RuntimeError: There is not enough; see `is_out_of_memory`.
    """
    _ = [torch.empty(size, dtype=torch.uint8) for size in sizes]


# To suggest when to retry: other requests are applied or sent at about this rate.
_BYTES_PER_SECOND = 1e9
_LEAST_SECONDS = 0.1


class Budget:
    """Counts the bytes of requests before they are allocated, and who has them.

    Args:
        limit: The most bytes.
        reclaim: Releases dispensable reservations; called when there are not enough bytes.
        clock: Tells when a request was refused.

    Attributes:
        limit: The same.
        largest: The most bytes that one client may have, which is the most for one request.
    """

    def __init__(
        self,
        limit: int,
        reclaim: Callable[[], object] = lambda: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.limit, self.largest = limit, share_of(limit, 0)
        self._shares = Shares(limit)
        self._reclaim = reclaim
        self._clock = clock
        # The bytes of the last request that was refused, and when that was.
        self._refused: tuple[int, float] | None = None

    @property
    def used(self) -> int:
        return self._shares.used

    def reserve(self, nbytes: int, purpose: str, client: str = "") -> Reservation:
        """Take bytes until the reservation is released.

        Args:
            nbytes: How many.
            purpose: What they are for, for messages.
            client: The label of the client whose share they count in; "" for the server itself.

        Raises:
            ResourceExhaustedError: The limit or the client's share would be exceeded.
        """
        if nbytes and self._shares.lacks(client, nbytes) > 0:
            self._reclaim()
            if self._shares.lacks(client, nbytes) > 0:
                self._refused = nbytes, self._clock()
                raise self._refusal(nbytes, purpose, client)
        return Reservation(self._shares, nbytes, client)

    def report(self) -> pb.Budget:
        budget = pb.Budget(used=self.used, limit=self.limit)
        if self._refused is not None:
            budget.refused, refused_at = self._refused
            budget.refused_seconds = self._clock() - refused_at
        return budget

    def _refusal(self, nbytes: int, purpose: str, client: str) -> ResourceExhaustedError:
        is_temporary = nbytes <= (self.largest if client else self.limit)
        remedy = "repeat it in a moment" if is_temporary else "ask for less"
        share = (
            f", {self._shares.used_by(client)} of them by {client}, whose share is "
            f"{self._shares.share(client)}: three quarters of what others leave"
        )
        error = ResourceExhaustedError(
            f"{purpose} needs {nbytes} bytes; {self.used} of the budget of "
            f"{self.limit} bytes for staged and waiting data are in use{share if client else ''}; "
            f"{remedy}, or start the server with a larger --staged-bytes"
        )
        if is_temporary:
            in_the_way = self._shares.lacks(client, nbytes)
            error.retry_seconds = _LEAST_SECONDS + in_the_way / _BYTES_PER_SECOND
        return error


class Reservation:
    """Reserved bytes of a budget; a context manager that releases them at its end."""

    def __init__(self, shares: Shares, nbytes: int, client: str = "") -> None:
        self._shares, self.nbytes, self._client = shares, nbytes, client
        if nbytes:
            shares.count(client, nbytes)

    def release(self) -> None:
        """Release the bytes; a repetition does nothing."""
        if self.nbytes:
            self._shares.count(self._client, -self.nbytes)
            self.nbytes = 0

    def hand_over(self, client: str | None = None) -> Reservation:
        """Move the bytes to a new reservation, of the same client if no other is said."""
        successor = Reservation(
            self._shares, self.nbytes, self._client if client is None else client
        )
        self.release()
        return successor

    def give_up(self) -> Reservation:
        """Move the bytes to a new reservation of the server's own, and return it."""
        return self.hand_over(client="")

    def absorb(self, other: Reservation) -> None:
        """Take over the bytes of another reservation of the same budget."""
        self._shares.count(self._client, other.nbytes)
        self.nbytes += other.nbytes
        other.release()

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


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
        """Count more bytes for a variable; raise ResourceExhaustedError if there are too few."""
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


Key = TypeVar("Key", bytes, "tuple[str, ...]")
Entry = TypeVar("Entry")


class LruCache(Generic[Key, Entry]):
    """A cache of entries by key; the least recently used entries are dropped first.

    Args:
        most: The most entries.
        most_in_keys: The most total length of their keys.
    """

    def __init__(self, most: int, most_in_keys: float = math.inf) -> None:
        self._most, self._most_in_keys = most, most_in_keys
        # The most recently used entries are at the end.
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._in_keys = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, key: Key) -> Entry | None:
        """Return the entry of a key, which is then the most recently used; None if it has none."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: Key, entry: Entry) -> None:
        """Set the entry of a key; a key that is too long is ignored."""
        # All other entries would be dropped before this one.
        if len(key) > self._most_in_keys:
            return
        if key not in self._entries:
            self._in_keys += len(key)
        self._entries[key] = entry
        self._entries.move_to_end(key)
        while len(self) > self._most or self._in_keys > self._most_in_keys:
            dropped, _ = self._entries.popitem(last=False)
            self._in_keys -= len(dropped)


class Stop:
    """Whether some work is to stop; used in any thread."""

    def __init__(self, wider: Stop | None = None) -> None:
        self._wider = wider
        self._error: StratagemError | None = None

    def request(self, error: StratagemError) -> None:
        """Have the work stop where it next looks, and fail with an error that will pass."""
        self._error = error

    def check(self) -> None:
        """Raise the error if the work is to stop."""
        if self._error is not None:
            raise self._error
        if self._wider is not None:
            self._wider.check()


_NEVER = Stop()

PRESENT: ContextVar[Stop] = ContextVar("stratagem_stop", default=_NEVER)
"""Stops the request that is being applied."""
