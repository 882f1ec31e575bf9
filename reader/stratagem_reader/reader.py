"""Following a source, and reading one version of it at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from typing_extensions import Self

from stratagem_proto.errors import (
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    ResourceExhaustedError,
    StaleVersionError,
    StoreError,
    StratagemError,
    UnavailableError,
    UnimplementedError,
)
from stratagem_proto.wire.tensors import is_out_of_memory
from stratagem_reader.lookup_client import ServedRows
from stratagem_reader.pins import Pin, Pins
from stratagem_reader.replica import Prepared, Replica
from stratagem_reader.source import Source

_LOG = logging.getLogger("stratagem")

# How long the source is asked to wait for a version at a time.
_WAIT_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_CLOSING_SECONDS = 10.0

# A pin begins with the version that a reader server keeps; how often that is tried.
_AGREEMENTS = 5

DEFAULT_LEASE = 10.0


class Follower:
    """The versions of a source, one after the other, in the memory of this process.

    A thread takes each version over once all of it has come and was checked, and nobody reads the
    one before. If the source is lost, what is here goes on being read; `age` and `source_error` say
    so.

    Args:
        source: What to follow; it is closed with this.
        timeout: How many seconds to wait for the first version; 0 to wait for none.
        lease: How many seconds a pin holds by default.
        max_age: How many seconds old a version may be that is read; None for any age.

    Attributes:
        replica: The values.
        pins: Who reads them.

    Raises:
        DeadlineExceededError: There was no version in time.
        StratagemError: The source refuses to be followed.
    """

    def __init__(
        self,
        source: Source,
        *,
        timeout: float = 60.0,
        lease: float = DEFAULT_LEASE,
        max_age: float | None = None,
    ) -> None:
        if lease <= 0 or (max_age is not None and max_age <= 0):
            raise InvalidArgumentError(
                f"lease is {lease} and max_age is {max_age}; both have to be above 0"
            )
        self.source, self.replica, self.pins = source, Replica(), Pins()
        self._lease, self._max_age = lease, max_age
        # Looks rows up elsewhere, where they are not here.
        self._rows: ServedRows | None = getattr(source, "rows", None)
        self._changed = threading.Condition()
        self._error: StratagemError | None = None
        # What a program has written to, until the values are right again; what has ended following.
        self._overwritten: FailedPreconditionError | None = None
        self._thread_error: InternalError | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="stratagem-reader", daemon=True)
        self._thread.start()
        if timeout > 0:
            try:
                self._await_first(timeout)
            except BaseException:
                self.close()
                raise

    # What is there.

    @property
    def version(self) -> int:
        """The number of the version that is read: within a pin its own; 0 before the first."""
        pin = self.pins.current()
        return self.replica.number if pin is None else pin.version

    @property
    def age(self) -> float:
        """How many seconds ago the present version was published; infinite before the first."""
        version = self.replica.version
        return float("inf") if version is None else max(0.0, time.time() - version.published)

    @property
    def source_error(self) -> StratagemError | None:
        """Why the source cannot be followed at present; None if it can."""
        return self._error

    @property
    def names(self) -> list[str]:
        """The names of all variables, as in the program that trains."""
        return self.replica.names()

    def wait_for(self, version: int, timeout: float = 60.0) -> int:
        """Wait until a version is here, or a later one.

        Args:
            version: The number of the version, as `strategy.publish()` returns it.
            timeout: How many seconds to wait.

        Returns:
            The number of the version that is here.

        Raises:
            DeadlineExceededError: It did not come in time.
            InternalError: Following has failed by a fault of Stratagem.
            FailedPreconditionError: Called within a pin, which keeps later versions away.
        """
        pin = self.pins.current()
        if pin is not None and pin.version < version:
            raise FailedPreconditionError(
                f"version {pin.version} is pinned here, which keeps version {version} away; wait "
                "outside of the pin"
            )
        with self._changed:
            self._changed.wait_for(
                lambda: self.replica.number >= version or self._thread_error, timeout
            )
            if self.replica.number >= version:
                return self.replica.number
            self._require_following()
        raise self._too_late(f"version {version}", timeout)

    def _await_first(self, timeout: float) -> None:
        with self._changed:
            give_up_at = time.monotonic() + timeout
            while not self.replica.number:
                error = self._error
                if error is not None and not _may_pass(error):
                    raise error
                left = give_up_at - time.monotonic()
                if left <= 0:
                    if error is not None:
                        raise error
                    raise self._too_late("any version", timeout)
                self._changed.wait(left)

    def _too_late(self, what: str, timeout: float) -> DeadlineExceededError:
        why = f": {self._error}" if self._error else ""
        return DeadlineExceededError(
            f"{what} of {self.source.name!r} did not come in {timeout:g} s; the latest here is "
            f"{self.replica.number or 'none'}{why}"
        )

    # Reading.

    @contextmanager
    def pin(self, lease: float | None = None) -> Iterator[int]:
        """Read one version in a block: later ones wait for its end, for as long as a lease allows.

        Reads in the block are of the version even if they are many. It holds for this thread, or
        this task of asyncio. A pin within another one is the same pin.

        Args:
            lease: How many seconds the version is held; None for the reader's lease.

        Yields:
            The number of the version.

        Raises:
            VersionExpiredError: Reading, or leaving the block, after the lease has run out.
            FailedPreconditionError: There is no version yet.
            StaleVersionError: The version is older than `max_age` allows.
        """
        pin = self._enter(lease)
        try:
            yield pin.version
        except BaseException:
            self.pins.leave()
            raise
        self.pins.leave().require_valid()

    def _enter(self, lease: float | None = None) -> Pin:
        """Begin what `pin` does; end it by `pins.leave()`."""
        if lease is not None and lease <= 0:
            raise InvalidArgumentError(f"lease is {lease}; it has to be above 0")
        is_outer = self.pins.current() is None
        pin = self._held_elsewhere(lease or self._lease) if self._rows else None
        if pin is None:
            pin = self.pins.enter(lambda: self.replica.number, lease or self._lease)
        try:
            self._require_readable()
            if is_outer:
                self._require_own()
            pin.require_valid()
        except BaseException:
            self.pins.leave()
            raise
        return pin

    def _held_elsewhere(self, lease: float) -> Pin | None:
        """Begin a pin of the version that a reader server keeps for it; None within another one."""
        assert self._rows is not None
        if self.pins.current() is not None:
            return None
        self._require_readable()
        for _ in range(_AGREEMENTS):
            version = self._rows.agree(self.replica.number, lease, self.wait_for)
            pin = self.pins.enter(lambda: self.replica.number, lease)
            if pin.version == version:
                pin.left = self._rows.release
                return pin
            self.pins.leave()
            self._rows.release()
        raise UnavailableError(
            f"{self.source.name!r} came to later versions faster than this reader; pin again, or "
            "publish less often"
        )

    def _require_following(self) -> None:
        """Raise the error by which following has ended, if it has."""
        if self._thread_error is not None:
            raise self._thread_error

    def _require_readable(self) -> None:
        self._require_following()
        if self._overwritten is not None and not self.replica.is_intact:
            raise self._overwritten
        why = f" ({self._error})" if self._error else ""
        if not self.replica.number or not self.replica.is_intact:
            raise FailedPreconditionError(
                f"there is no version of {self.source.name!r} here{why}; call wait_for(1), or make "
                "the reader with a timeout"
            )
        if self._max_age is not None and self.age > self._max_age:
            raise StaleVersionError(
                f"version {self.replica.number} of {self.source.name!r} was published "
                f"{self.age:.1f} s ago, and max_age is {self._max_age:g} s{why}; see that it is "
                "published and can be reached, or allow more"
            )

    def _require_own(self) -> None:
        """Check that no program has written to the values; the thread reads them anew if one has.

        Raises:
            FailedPreconditionError: One has.
        """
        name = self.replica.overwritten()
        if name is not None:
            self._overwritten = FailedPreconditionError(
                f"{name!r} follows {self.source.name!r}, and this program has written to it; all "
                "values are read anew, which takes seconds. Write to a copy, by copy.deepcopy() of "
                "the module"
            )
            self._overwritten.variable = name
            self.replica.is_intact = False
            raise self._overwritten

    def lookup(
        self,
        table: str,
        keys: torch.Tensor,
        default: torch.Tensor | float | None = None,
    ) -> torch.Tensor:
        """Return rows of a variable.

        Args:
            table: The name of a table, or of another variable with rows.
            keys: Keys, or numbers of rows: integers of any shape.
            default: What keys without a stored row get: a number, or a row. None for what
                training would begin with.

        Returns:
            A new tensor of the shape of `keys` and of a row, on the device of `keys`.

        Raises:
            VariableNotFoundError: The version has no such variable.
            RowIndexError: There is no such row.
            VersionExpiredError: The pin that the caller is in has expired.
            StaleVersionError: The version is older than `max_age` allows.
        """
        if not isinstance(keys, torch.Tensor) or keys.is_floating_point() or keys.is_complex():
            raise InvalidTypeError(f"keys are {keys!r:.80}; pass a tensor of integers")
        each = keys.detach().reshape(-1).to("cpu", torch.int64)
        outer = self.pins.current()
        pin = self.pins.enter(lambda: self.replica.number, self._lease)
        try:
            self._require_readable()
            pin.require_valid()
            rows = self._found(table, each, default, outer)
        except (IndexError, RuntimeError, ValueError):
            # Of a version that was replaced meanwhile, nothing can be trusted.
            pin.require_valid()
            raise
        finally:
            self.pins.leave()
        pin.require_valid()
        return rows.view(*keys.shape, *rows.shape[1:]).to(keys.device)

    def _found(
        self,
        table: str,
        keys: torch.Tensor,
        default: torch.Tensor | float | None,
        outer: Pin | None,
    ) -> torch.Tensor:
        remote = self.replica.tables.get(table) if self._rows is not None else None
        if self._rows is None or remote is None:
            return self.replica.rows(table, keys, default)
        version, lease = None, 0.0
        if outer is not None:
            version, lease = outer.version, max(0.0, outer.ends - time.monotonic())
        return self._rows.look_up(remote, keys, default, version, lease)

    def value(self, name: str) -> torch.Tensor:
        """Return a copy of a variable that is no table.

        Raises:
            VariableNotFoundError: The version has no such variable.
            InvalidArgumentError: It is a table.
            VersionExpiredError: The pin that the caller is in has expired.
            StaleVersionError: The version is older than `max_age` allows.
        """
        pin = self.pins.enter(lambda: self.replica.number, self._lease)
        try:
            self._require_readable()
            self._require_own()
            pin.require_valid()
            value = self.replica.value(name).clone()
        finally:
            self.pins.leave()
        pin.require_valid()
        return value

    def keys(self, table: str) -> torch.Tensor:
        """Return the keys, or the numbers, of the rows of a table that are stored.

        Others have what training begins with. It raises like `value`.

        Returns:
            An int64 vector, in no particular order.
        """
        if self._rows is not None:
            raise UnimplementedError(
                f"{self.source.name!r} is asked for rows by their keys, which are not here; follow "
                "what it follows to have them all"
            )
        pin = self._enter()
        try:
            keys = self.replica.table(table).keys()
        finally:
            self.pins.leave()
        pin.require_valid()
        return keys

    # Following.

    def _follow(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._closing.is_set():
            try:
                self._take_next()
            except Exception as error:
                told = self._told(error)
                self._note(told)
                if self._thread_error is not None or self._closing.wait(pause):
                    return
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                pause = _FIRST_PAUSE_SECONDS
                self._note(None)

    def _told(self, error: Exception) -> StratagemError:
        """Return what readers are told; what is no matter of the source ends following."""
        name = self.source.name
        if isinstance(error, StratagemError) and not isinstance(error, InternalError):
            return error
        if isinstance(error, OSError):
            return UnavailableError(f"{name!r} cannot be read: {error}")
        if is_out_of_memory(error):
            return ResourceExhaustedError(f"there is no memory for a version of {name!r}: {error}")
        if not self._closing.is_set():
            _LOG.error("a reader of %r has failed, and follows no more", name, exc_info=error)
            self._thread_error = InternalError(
                f"following {name!r} has failed by a fault of stratagem: {error!r}; report it with "
                "what the log says, and make another reader"
            )
            self._thread_error.__cause__ = error
        return self._thread_error or UnavailableError(f"{name!r} is closed")

    def _take_next(self) -> None:
        present = self.replica.version if self.replica.is_intact else None
        version = self.source.latest(present, _WAIT_SECONDS)
        if version is None or self._closing.is_set():
            return
        try:
            reached, chains = self.source.chains(version, present)
            prepared = self.replica.prepare(reached, chains, is_whole=present is None)
        except (NotFoundError, DataLossError) as error:
            if present is None:
                raise
            _LOG.warning(
                "version %d of %r is read whole, since what differs from version %d cannot be: %s",
                version.number,
                self.source.name,
                present.number,
                error,
            )
            reached, chains = self.source.chains(version, None)
            prepared = self.replica.prepare(reached, chains, is_whole=True)
        with self.pins.excluded():
            if not prepared.is_whole:
                self._require_own()
            self.replica.commit(prepared)
        self._taken(prepared)

    def _taken(self, prepared: Prepared) -> None:
        """Called after a version was put in place, by the thread that follows."""

    def _note(self, error: StratagemError | None) -> None:
        if self._closing.is_set():
            return
        with self._changed:
            if error is not None and (self._error is None or str(self._error) != str(error)):
                _LOG.warning("%r cannot be followed at present: %s", self.source.name, error)
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        """Follow the source no more; what is here can be read on."""
        self._closing.set()
        self.source.close()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSING_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _may_pass(error: StratagemError) -> bool:
    """Return whether what the source says may change while a reader waits."""
    return isinstance(error, NotFoundError | UnavailableError | DataLossError | StoreError)
