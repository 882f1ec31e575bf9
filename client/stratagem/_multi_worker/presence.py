"""Which workers have come to the operation that the others wait in."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from torch._C._distributed_c10d import Store
from torch.distributed import DistStoreError

from stratagem._core.waiting import Wait
from stratagem._multi_worker.place import WorkerPlace

_LOOK_SECONDS = 2.0


class Presence:
    """Tells people which workers an operation waits for.

    A worker that waits for a while leaves the number of its operation in the store in which the
    workers meet, in the place of the number before. Those that have left another one are missing.
    """

    def __init__(self, place: WorkerPlace, store: Store, timeout: float) -> None:
        self._place, self._store, self._timeout = place, store, timeout
        self._host = f"{place.tasks[0]}, at whose address the workers meet"

    @contextmanager
    def waiting(self, operation: int, ago: float) -> Iterator[None]:
        """Return a context in which this worker waits in an operation.

        Args:
            operation: Its number.
            ago: For how many seconds it has waited already.
        """
        over = threading.Event()
        wait = Wait(self._place.name, self._whom([self._host]), self._timeout)
        wait.begin(ago=ago)
        # The store does not answer where its process is stopped, but this worker's time runs out.
        threading.Thread(
            target=self._look, args=(operation, wait, over), name="stratagem-presence", daemon=True
        ).start()
        try:
            with wait:
                yield
        finally:
            over.set()

    def _look(self, operation: int, wait: Wait, over: threading.Event) -> None:
        with suppress(DistStoreError, RuntimeError):
            while not over.is_set():
                missing = self._missing(operation)
                # Those who have all come wait for the network.
                wait.whom = self._whom(missing or ["the other workers, which are all there"])
                over.wait(_LOOK_SECONDS)
                # Until it answers again.
                wait.whom = self._whom([self._host])

    def _missing(self, operation: int) -> Sequence[str]:
        self._store.set(_key(self._place.rank), str(operation))
        others = [rank for rank in range(self._place.size) if rank != self._place.rank]
        return [self._place.tasks[rank] for rank in others if not self._is_at(rank, operation)]

    def _is_at(self, rank: int, operation: int) -> bool:
        is_known = self._store.check([_key(rank)])
        return is_known and self._store.get(_key(rank)) == str(operation).encode()

    def _whom(self, missing: Sequence[str]) -> str:
        return f"{', '.join(missing)} to take part in an operation, at {self._place.meeting_point}"


def _key(rank: int) -> str:
    return f"waits/{rank}"
