"""How workers find each other, and which of them are missing after a failure.

The workers meet in a key-value store of torch that the chief serves. Each worker counts there the
groups that it comes to, and each group has its own keys, by that number. A group that somebody has
given up is over: those who wait in it, and those who come to it later, go on to the next one, where
they find whoever tries again.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import DistStoreError

from stratagem._core.waiting import Wait
from stratagem._multi_worker.place import WorkerPlace
from stratagem_proto.errors import DeadlineExceededError, FailedPreconditionError, UnavailableError

_REPORT_SECONDS = 2.0
_ANSWER_SECONDS = 3 * _REPORT_SECONDS
_STORES = 16
"""The number of connections that are kept, for worker servers that meet repeatedly."""

# Processes that are forked have it in common, but not their numbers.
_PROCESS_TOKEN = uuid.uuid4().hex

_OUTCOME = "outcome"
_MET, _GIVEN_UP = "met", "given up"


class Meeting:
    """The part of the store that belongs to one group of workers.

    Raises:
        UnavailableError: Nobody listens where the workers meet.
        FailedPreconditionError: A worker of this rank was here before.
    """

    def __init__(self, place: WorkerPlace, timeout: float) -> None:
        self._place = place
        self._timeout = timeout
        self._groups = PrefixStore(f"stratagem/{place.attempt}", _connected(place, timeout))
        self._require_first_process()
        self.store = self._next_group()

    def _require_first_process(self) -> None:
        process = f"{os.getpid()} {_PROCESS_TOKEN}"
        first = self._groups.compare_set(f"process/{self._place.rank}", "", process)
        if first.decode() != process:
            raise FailedPreconditionError(
                f"{self._place.name} has joined the workers at {self._place.meeting_point} before: "
                "it was started again while others still run; start all workers anew",
                task=self._place.name,
            )

    def _next_group(self) -> Store:
        """Come to the next group, and return its part of the store."""
        number = self._groups.add(f"number/{self._place.rank}", 1)
        group = PrefixStore(str(number), self._groups)
        group.set(f"here/{self._place.rank}", "")
        if group.add("arrivals", 1) == self._place.size:
            group.compare_set(_OUTCOME, "", _MET)
        return group

    def wait_for_all(self) -> None:
        """Wait until all workers are here; DeadlineExceededError names the missing."""
        give_up_at = time.monotonic() + self._timeout
        name, where = self._place.name, self._place.meeting_point
        try:
            with Wait(name, f"the other workers, at {where}", self._timeout) as wait:
                while not self._are_here(give_up_at):
                    wait.whom = f"{self._missing('here')}, at {where}"
        except BaseException as error:
            # The last one may have come just now.
            if self._give_up() or not isinstance(error, DeadlineExceededError):
                raise

    def _are_here(self, give_up_at: float) -> bool:
        """Wait a while for all workers, and return whether they are here."""
        left = max(give_up_at - time.monotonic(), 0.0)
        is_last = left <= _REPORT_SECONDS
        seconds = left if is_last else _REPORT_SECONDS
        try:
            return self._have_met_within(timedelta(seconds=seconds))
        except DistStoreError as error:
            if not is_last:
                return False
            raise self._late() from error
        except RuntimeError as error:
            raise self._lost(error) from error

    def _have_met_within(self, limit: timedelta) -> bool:
        self.store.wait([_OUTCOME], limit)
        have_met = self.store.get(_OUTCOME).decode() == _MET
        if not have_met:
            self.store = self._next_group()
        return have_met

    def _give_up(self) -> bool:
        """Have the others wait for the next group; return False if all have come to this one."""
        # The store may be what failed.
        with suppress(DistStoreError, RuntimeError):
            return self.store.compare_set(_OUTCOME, "", _GIVEN_UP).decode() != _MET
        return True

    def _late(self) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"{self._place.name} waited {self._timeout:g} s at {self._place.meeting_point} for "
            f"{self._missing('here')}: start all workers of the cluster, or allow more time by "
            "CommunicationOptions(timeout_seconds=...)",
            task=self._place.name,
        )

    def _lost(self, error: RuntimeError) -> UnavailableError:
        return UnavailableError(
            f"{self._place.name} waited for the other workers, and lost {self._host}: "
            f"{str(error).splitlines()[0]}. Look at its output, and start it again",
            task=self._place.name,
        )

    def missing_after_failure(self, operation: int) -> str:
        """Return the workers that did not take part in an operation that failed.

        Every worker for which it failed calls this, so that the others are known.
        """
        found: SimpleQueue[str] = SimpleQueue()
        # A store does not answer, nor give up, while its process is stopped.
        threading.Thread(
            target=lambda: found.put(self._absent(operation)), name="stratagem-absent", daemon=True
        ).start()
        try:
            return found.get(timeout=_ANSWER_SECONDS)
        except Empty:
            return self._host

    def _absent(self, operation: int) -> str:
        topic = f"failed/{operation}"
        try:
            self.store.set(f"{topic}/{self._place.rank}", "")
            self.store.wait(self._keys(topic), timedelta(seconds=_REPORT_SECONDS))
        except (DistStoreError, RuntimeError):
            return self._missing(topic)
        return "nobody; the connections between the workers failed"

    def _keys(self, topic: str, ranks: Iterable[int] | None = None) -> list[str]:
        ranks = range(self._place.size) if ranks is None else ranks
        return [f"{topic}/{rank}" for rank in ranks]

    def _missing(self, topic: str) -> str:
        try:
            missing = [
                task
                for rank, task in enumerate(self._place.tasks)
                if not self.store.check(self._keys(topic, [rank]))
            ]
        except (DistStoreError, RuntimeError):
            return self._host
        return ", ".join(missing)

    @property
    def _host(self) -> str:
        return f"{self._place.tasks[0]}, at whose address the workers meet"


# A store is kept because later groups may use it, and the chief serves them too. Each group keeps
# the store that it uses. The one used last comes last.
_stores: dict[tuple[WorkerPlace, float], TCPStore] = {}


def _connected(place: WorkerPlace, timeout: float) -> TCPStore:
    store = _stores.pop((place, timeout), None)
    if store is None or not _answers(store):
        store = _new_store(place, timeout)
    _stores[place, timeout] = store
    while len(_stores) > _STORES:
        del _stores[next(iter(_stores))]
    return store


def _answers(store: TCPStore) -> bool:
    """Return whether the chief still serves a store; it does not if it was started again."""
    try:
        store.check(["anything"])
    except (DistStoreError, RuntimeError):
        return False
    return True


def _new_store(place: WorkerPlace, timeout: float) -> TCPStore:
    whom = f"{place.tasks[0]} at {place.meeting_point}, where the workers meet"
    try:
        with Wait(place.name, whom, timeout):
            return _store(place, timeout)
    except (DistStoreError, RuntimeError) as error:
        raise _not_connected(place, timeout, error) from error


def _store(place: WorkerPlace, timeout: float) -> TCPStore:
    host, _, port = place.meeting_point.rpartition(":")
    return TCPStore(
        host.strip("[]"),
        int(port),
        is_master=place.hosts_meeting,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        # The user's own process group may be served at the same address.
        multi_tenant=True,
    )


def _not_connected(place: WorkerPlace, timeout: float, error: Exception) -> UnavailableError:
    reason = str(error).splitlines()[0]
    if place.hosts_meeting:
        return UnavailableError(
            f"{place.name} cannot listen at {place.meeting_point}, where the workers "
            f"meet: {reason}. Give the chief an address of its machine and a free port",
            task=place.name,
        )
    return UnavailableError(
        f"{place.name} found nobody at {place.meeting_point} in {timeout:g} s, where "
        f"{place.tasks[0]} lets the workers meet: {reason}. Start that worker, or "
        "correct its address in the cluster",
        task=place.name,
    )
