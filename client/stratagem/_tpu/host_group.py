"""The hosts of a strategy, as its program reaches them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from itertools import count

from stratagem._coordinator.workers.remote_worker import RemoteWorker
from stratagem._core.waiting import Wait
from stratagem._ps_client.connections.session import Identity
from stratagem._shipping.parcel import Parcel
from stratagem._shipping.remote_objects.kinds import load_result
from stratagem._worker_client.closure_failure import ClosureAnswer, ClosureFailure, RemoteTraceback
from stratagem._worker_client.link import WorkerLink
from stratagem_proto.errors import StratagemError, UnavailableError, WorkerLostError
from stratagem_proto.v1.session_pb2 import ROLE_CLIENT, Task
from stratagem_proto.wire.channel import Deadlines

_GRACE_SECONDS = 5.0


class HostGroup:
    """Sends calls to all hosts at the same time.

    When a host is lost, or alone fails in a call, the others wait for it in vain. All connections
    are then closed, and every later call fails.
    """

    def __init__(self, workers: Sequence[RemoteWorker]) -> None:
        self._workers = workers
        self._failure: StratagemError | None = None

    def call(self, parcels: Sequence[Parcel]) -> list[object]:
        """Have the first hosts call one parcel each, and return their results.

        Raises:
            WorkerLostError: A host was lost, now or before.
            Exception: A parcel could not be loaded, or the call raised this.
        """
        if self._failure is not None:
            raise self._failure
        futures, waiting = self._carried_out(parcels)
        failed = [each for each in futures if each not in waiting and each.exception()]
        if failed:
            self._raise(futures, failed, len(failed) < len(futures))
        return [load_result(future.result().payload) for future in futures]

    @property
    def failed(self) -> bool:
        """Whether every later call fails."""
        return self._failure is not None

    def release(self, handles: Sequence[int]) -> None:
        """Tell the hosts to forget objects."""
        for worker in self._workers:
            worker.release(handles)

    def fail(self, why: str) -> None:
        """Close all connections, because the hosts cannot go on together."""
        self.close(_broken(why))

    def close(self, failure: StratagemError) -> None:
        """End all sessions; later calls raise the failure."""
        self._failure = self._failure or failure
        for worker in self._workers:
            worker.close()

    def _carried_out(
        self, parcels: Sequence[Parcel]
    ) -> tuple[Sequence[Future[ClosureAnswer]], Collection[Future[ClosureAnswer]]]:
        """Have hosts carry out a call; return the answers, and those that wait for a failed host.

        If the wait is interrupted, the connections are closed: nothing else would end the call on
        the hosts.
        """
        pairs = zip(self._workers, parcels, strict=False)
        try:
            futures = [worker.call(parcel) for worker, parcel in pairs]
            _, rest = wait(futures, return_when=FIRST_EXCEPTION)
            # All hosts may fail alike. One that does not waits for those that have.
            _, waiting = wait(rest, timeout=_GRACE_SECONDS)
        except Exception as error:
            self.fail(f"one of them was not called: {error}")
            raise
        except BaseException:
            self.fail("the program was interrupted")
            raise
        return futures, waiting

    def _raise(
        self,
        futures: Sequence[Future[ClosureAnswer]],
        failed: Sequence[Future[ClosureAnswer]],
        apart: bool,
    ) -> None:
        for future in failed:
            if not isinstance(future.exception(), ClosureFailure):
                found = _lost(future.exception())
                self.close(found)
                raise found from future.exception()
        failure = failed[0].exception()
        assert isinstance(failure, ClosureFailure)
        worker = self._workers[futures.index(failed[0])]
        if apart:
            self.fail(f"{worker.name} has failed alone: {failure.exception}")
        trace = RemoteTraceback(worker.name, "what it was sent", failure.traceback)
        raise failure.exception from trace


def connected(
    addresses: Sequence[tuple[int, str]], job: str, token: str, deadlines: Deadlines | None = None
) -> list[RemoteWorker]:
    """Connect to worker servers, given the index and the "host:port" of each."""
    identity, found = Identity(ROLE_CLIENT, token=token), list[RemoteWorker]()
    try:
        for index, address in addresses:
            link = WorkerLink(address, Task(job=job, index=index), identity, deadlines)
            with Wait("this program", link.peer, link.connect_seconds):
                link.connect()
            found.append(RemoteWorker(index, link, count(1)))
    except BaseException:
        for worker in found:
            worker.close()
        raise
    return found


def _lost(error: BaseException | None) -> WorkerLostError:
    return WorkerLostError(
        f"{error}. Hosts step together, so the others cannot go on without it, and "
        "what they have done since the last call is gone. Start it again, call "
        "experimental_initialize() of the strategy, and restore the last checkpoint"
    )


def _broken(why: str) -> UnavailableError:
    return UnavailableError(
        f"The hosts are not in step any more: {why}. Call experimental_initialize() "
        "of the strategy, and restore the last checkpoint"
    )
