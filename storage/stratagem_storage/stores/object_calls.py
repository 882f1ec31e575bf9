"""Calls to stores of objects, by fsspec: each has a deadline, and errors name the URL."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import cache, partial
from threading import Thread
from typing import Any, TypeVar

from stratagem_proto.errors import (
    FailedPreconditionError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
    StratagemError,
)
from stratagem_storage.stores.places import StoreUrl

Result = TypeVar("Result")

SECONDS = 120.0
"""What one call may take: the libraries of stores repeat requests by themselves until then."""

# S3 takes 10,000 pieces of an object: of 640 GB with these.
_PIECE_BYTES = 64 << 20

# What stores answer if a condition does not hold.
_REFUSALS = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}

_WITHOUT_KEYS = {"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"}

_PACKAGES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gs")}

LOG = logging.getLogger("stratagem")


class ObjectCalls:
    """Calls to one kind of store.

    Args:
        scheme: The kind of store.
    """

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme

    def size(self, url: StoreUrl) -> int | None:
        """Return the bytes of an object; None if there is none."""
        try:
            found = self._call(url, "read", lambda system: system.info(str(url)))
        except FileNotFoundError:
            return None
        return int(found["size"]) if found["type"] == "file" else None

    def age(self, url: StoreUrl) -> float:
        """Return how many seconds ago an object was written."""
        written: datetime = self._call(url, "read", lambda system: system.modified(str(url)))
        return (datetime.now(timezone.utc) - written).total_seconds()

    def read(self, url: StoreUrl, begin: int, end: int) -> bytes:
        """Return some bytes of an object.

        Raises:
            FileNotFoundError: There is none.
        """
        work = partial(_read, url=str(url), begin=begin, end=end)
        return self._call(url, "read", work)

    def list_names(self, url: StoreUrl) -> list[tuple[str, bool]]:
        """Return the names directly below a place, and which are those of objects."""
        try:
            found = self._call(url, "list", lambda system: system.ls(str(url), detail=True))
        except FileNotFoundError:
            return []
        names = [(each["name"].rstrip("/"), each["type"] == "file") for each in found]
        own = "/".join(url.segments)
        return [
            (name.rpartition("/")[2], is_object)
            for name, is_object in names
            if name.lstrip("/") != own
        ]

    def create(self, url: StoreUrl, data: bytes) -> None:
        """Put an object by one request, which has no effect where there is one already.

        Raises:
            FileExistsError: There is one.
            NotFoundError: There is no such bucket.
        """
        work = partial(_create, url=str(url), data=data)
        with _writing(url):
            self._call(url, "write", work)

    def upload(self, url: StoreUrl, data: Iterable[memoryview], replaces: bool) -> None:
        """Put a large object, which appears as a whole once all of it is there.

        Args:
            url: The object.
            data: Its bytes in consecutive runs.
            replaces: Whether there may be one.

        Raises:
            FileExistsError: There is one.
            NotFoundError: There is no such bucket.
        """
        with _writing(url):
            self._upload(url, data, "wb" if replaces else "xb")

    def _upload(self, url: StoreUrl, data: Iterable[memoryview], mode: str) -> None:
        opening = partial(_opened, url=str(url), mode=mode)
        file = self._call(url, "write", opening)
        try:
            for run in data:
                self._call(url, "write", partial(_written, file=file, run=run))
            self._call(url, "write", lambda _: file.close())
        except BaseException:
            with suppress(StratagemError, OSError):
                self._call(url, "write", lambda _: file.discard())
            # What fsspec would do when nothing refers to it any more is to put what there is.
            with suppress(AttributeError):
                file.closed = True
            raise

    def remove(self, urls: Sequence[StoreUrl]) -> None:
        """Remove objects, those that are there."""
        for url in urls:
            with suppress(FileNotFoundError):
                self._call(url, "remove", partial(_removed, url=str(url)))

    def _call(self, url: StoreUrl, verb: str, work: Callable[[Any], Result]) -> Result:
        """Have a thread do something, so that this one can go on without it."""
        done: Future[Result] = Future()
        began = time.monotonic()
        Thread(target=self._run, args=(work, done), daemon=True).start()
        with _explained(url, verb):
            try:
                return done.result(SECONDS)
            except FutureTimeoutError:
                if time.monotonic() - began < SECONDS:
                    raise
        raise StoreError(
            f"the store did not {verb} {str(url)!r} in {SECONDS:g} s; see whether it can be "
            "reached from here, and try again"
        )

    def _run(self, work: Callable[[Any], Result], done: Future[Result]) -> None:
        try:
            done.set_result(work(system_of(self._scheme, os.getpid())))
        except BaseException as error:
            done.set_exception(error)


@cache
def system_of(scheme: str, process: int) -> Any:
    """Return what calls one kind of store, for all threads of a process.

    fsspec itself keeps one for each thread, with connections of its own, and each call has another
    thread. Forks cannot use those of the process before.
    """
    # Late: programs that use no store do without what reaches one.
    import fsspec

    # What is listed changes without it.
    return fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True)


def _read(system: Any, url: str, begin: int, end: int) -> bytes:
    return bytes(system.cat_file(url, start=begin, end=end))


def _written(system: Any, file: Any, run: memoryview) -> None:
    file.write(run)


def _removed(system: Any, url: str) -> None:
    system.rm_file(url)


def _opened(system: Any, url: str, mode: str) -> Any:
    if mode == "xb" and system.exists(url):
        # Some stores look at a condition only where an object is put by one request.
        raise FileExistsError(17, "there is such an object", url)
    return system.open(url, mode, block_size=_PIECE_BYTES)


def _create(system: Any, url: str, data: bytes) -> None:
    try:
        system.pipe_file(url, data, mode="create")
    except OSError as error:
        if _code(error) in _REFUSALS:
            raise FileExistsError(17, "there is such an object", url) from error
        raise


def _code(error: BaseException) -> str:
    """Return the code of a store's answer, if it is one."""
    answer = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code") or getattr(error, "code", ""))


@contextmanager
def _writing(url: StoreUrl) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{str(url)!r} cannot be written: the store has no bucket {url.segments[0]!r} that "
            "this process sees; make it first, or pass another URL"
        ) from error


@contextmanager
def _explained(url: StoreUrl, verb: str) -> Iterator[None]:
    try:
        yield
    except (StratagemError, FileNotFoundError, FileExistsError):
        raise
    except ImportError as error:
        package, extra = _PACKAGES[url.scheme]
        raise FailedPreconditionError(
            f"{str(url)!r} needs the package {package}; run `pip install 'stratagem[{extra}]'` "
            "for each process that reads or writes it"
        ) from error
    except PermissionError as error:
        raise _denied(url, verb, error) from error
    except Exception as error:
        if type(error).__name__ in _WITHOUT_KEYS:
            raise _denied(url, verb, error) from error
        raise _failed(url, verb, error) from error


def _denied(url: StoreUrl, verb: str, error: Exception) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"the store does not let this process {verb} {str(url)!r} ({_told(error)}); give it keys "
        "that may, as the store's library takes them from the environment, for instance "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )


def _failed(url: StoreUrl, verb: str, error: Exception) -> StoreError:
    return StoreError(
        f"the store did not {verb} {str(url)!r} ({_told(error)}); see whether it can be reached "
        "from here and what it says, and try again"
    )


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
