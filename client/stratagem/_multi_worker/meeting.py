"""Which workers train together, how they meet, and whether each is still there."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty, SimpleQueue

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import DistStoreError

from stratagem._cluster.tasks import id_in_cluster, validated, worker_count
from stratagem._core.waiting import Wait
from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from stratagem_rpc.serving.settings import INSECURE_VARIABLE, is_insecure, is_loopback


@dataclass(frozen=True)
class WorkerPlace:
    """A process among the workers that train together.

    Workers are named by rank, as in "/job:worker/replica:0/task:1"; the chief's rank is 0. They
    find each other at the meeting point, a "host:port"; a process that is alone has none. The
    attempt is the number of the start of these workers, if that is known. With a `local_rank` the
    process uses only the GPU of that number. The `local_size` is how many of them are known to be
    on its machine.
    """

    tasks: tuple[str, ...]
    rank: int = 0
    meeting_point: str = ""
    hosts_meeting: bool = False
    attempt: str = "0"
    local_rank: int | None = None
    local_size: int = 1

    @property
    def size(self) -> int:
        return len(self.tasks)

    @property
    def name(self) -> str:
        return self.tasks[self.rank]

    @property
    def is_on_one_machine(self) -> bool:
        """Whether all workers are known to be on this machine."""
        return self.local_size == self.size or is_loopback(self.meeting_point)

    @property
    def is_chief(self) -> bool:
        """Whether this process saves and logs. Spec: MWU-1."""
        return self.rank == 0


_ALONE = WorkerPlace(("/job:localhost/replica:0/task:0",))


def place_in_cluster(resolver: ClusterResolver) -> WorkerPlace:
    """Return the place that a resolver describes; without a cluster, a single place.

    Raises InvalidArgumentError if the task is not given, or does not train. Spec: MWU-2, MWU-3,
    MWU-7.
    """
    cluster = resolver.cluster_spec()
    if not cluster:
        return _ALONE
    job, index = resolver.task_type, resolver.task_id
    if not job or index is None:
        raise InvalidArgumentError(
            "With a cluster you must also specify `task_type` and `task_id`: which of "
            "its tasks this process is, for instance by the key 'task' of TF_CONFIG"
        )
    validated(cluster, job, index)
    rank, size = id_in_cluster(cluster, job, index), worker_count(cluster, job)
    if job == "evaluator" or size == 1:
        return WorkerPlace((_task_name(job, index),))
    # By rank.
    addresses = {
        _task_name(job, index): cluster.task_address(job, index)
        for job in ("chief", "worker")
        if job in cluster.jobs
        for index in cluster.task_indices(job)
    }
    meeting_point = next(iter(addresses.values()))
    return WorkerPlace(tuple(addresses), rank, meeting_point, rank == 0)


def _task_name(job: str, index: int) -> str:
    return f"/job:{job}/replica:0/task:{index}"


_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def place_by_torchrun() -> WorkerPlace | None:
    """Return the place that torchrun's environment describes, None without one."""
    environment = os.environ
    if any(name not in environment for name in _TORCHRUN):
        return None
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    agent_listens = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return WorkerPlace(
        tuple(_task_name("worker", index) for index in range(size)),
        rank,
        "{MASTER_ADDR}:{MASTER_PORT}".format(**environment),
        rank == 0 and not agent_listens,
        environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
        int(environment["LOCAL_RANK"]) if "LOCAL_RANK" in environment else None,
        int(environment.get("LOCAL_WORLD_SIZE", "1")),
    )


def require_trust(place: WorkerPlace) -> None:
    """Check that workers on several machines are meant to speak without certificates.

    Raises:
        FailedPreconditionError: Nobody has said so.
    """
    if place.is_on_one_machine or is_insecure():
        return
    raise FailedPreconditionError(
        f"{place.name} would meet workers of other machines at {place.meeting_point}, by the store "
        "and the collectives of torch.distributed, which know no secret and encrypt nothing; set "
        f"{INSECURE_VARIABLE}=true for all workers if nobody else is on their network, or train "
        "with ParameterServerStrategy and certificates",
        task=place.name,
    )


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
        return [
            self._place.tasks[rank]
            for rank in others
            if not self._store.check([_key(rank)])
            or self._store.get(_key(rank)) != str(operation).encode()
        ]

    def _whom(self, missing: Sequence[str]) -> str:
        return f"{', '.join(missing)} to take part in an operation, at {self._place.meeting_point}"


def _key(rank: int) -> str:
    return f"waits/{rank}"


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
            self.store.wait([_OUTCOME], timedelta(seconds=seconds))
            have_met = self.store.get(_OUTCOME).decode() == _MET
            if not have_met:
                self.store = self._next_group()
            return have_met
        except DistStoreError as error:
            if not is_last:
                return False
            raise self._late() from error
        except RuntimeError as error:
            raise self._lost(error) from error

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
    except (DistStoreError, RuntimeError) as error:
        raise _not_connected(place, timeout, error) from error


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
