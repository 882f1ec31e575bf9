"""A session with all hosts of a strategy, and how its objects travel to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from itertools import count
from typing import Any

from torch.nn import Parameter

from stratagem._coordinator.workers import RemoteWorker
from stratagem._core.distributed_variables import CopiedVariable
from stratagem._core.variables import LocalVariable, Variable
from stratagem._core.waiting import Wait
from stratagem._hosting.hosted_parameter import HostedParameter
from stratagem._hosting.hosting import hosting_of
from stratagem._ps_client.session import Identity
from stratagem._remote_objects.modules import ModuleKind, OptimizerKind
from stratagem._remote_objects.variables import (
    ExtendedKind,
    HostedKind,
    ResolverKind,
    of_a_parameter,
    own_variable,
    require_own,
)
from stratagem._shipping.closure_pickler import ClosurePickler
from stratagem._shipping.kinds import (
    Change,
    ChangingKind,
    KindTable,
    ObjectKind,
    Parcel,
    SessionKind,
    WorkerTask,
)
from stratagem._shipping.outcome_forms import PLAIN_OF_HOSTS, OutcomeForm
from stratagem._strategies.strategy import Strategy
from stratagem._tpu.cores import (
    CoresExtended,
    CoresStrategy,
    HostInput,
    HostPlan,
    HostsIterator,
    Topology,
    cores_here,
)
from stratagem._tpu.host import VariableForm, host_of, host_strategy, open_meeting_point
from stratagem._tpu.values import malformed, texts
from stratagem._worker_client.link import WorkerLink
from stratagem._worker_client.wire import ClosureAnswer, ClosureFailure, RemoteTraceback
from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.errors import (
    CancelledError,
    InvalidArgumentError,
    StratagemError,
    UnavailableError,
    WorkerLostError,
)
from stratagem_proto.v1.session_pb2 import ROLE_COORDINATOR, Task
from stratagem_rpc.channel import Deadlines


class HostStrategyKind(SessionKind):
    """The program's strategy."""

    name = "strategy of hosts"
    types = (CoresStrategy,)

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        return require_own("a strategy", value, strategy)

    def label(self, subject: CoresStrategy) -> str:
        return "the strategy"

    def essence(self, subject: CoresStrategy, strategy: Strategy) -> Any:
        return subject._class_on_hosts(), subject.extended._cores.plan()

    def make(self, essence: Any, task: WorkerTask) -> CoresStrategy:
        cls, plan = essence
        return host_strategy(cls, plan, task.index)

    def refresh(self, made: CoresStrategy) -> None:
        """Do nothing: values come with calls."""

    def close(self, made: CoresStrategy) -> None:
        host_of(made).close()


class CopiedVariableKind(ObjectKind):
    """A `Variable`. Calls bring its value when the program has changed it."""

    name = "copied variable"
    types = (CopiedVariable, LocalVariable)

    def subject(self, value: Variable, strategy: Strategy) -> object | None:
        if value.distribute_strategy is None:
            return None
        whole = own_variable(value, strategy)
        if isinstance(whole.values[0].value(), Parameter):
            raise of_a_parameter(whole)
        return whole

    def label(self, subject: Variable) -> str:
        return f"variable {subject.name!r}"

    def essence(self, subject: Variable, strategy: Strategy) -> Any:
        return strategy, VariableForm.from_variable(subject)

    def make(self, essence: Any, task: WorkerTask) -> Variable:
        strategy, form = essence
        return host_of(strategy).attach_variable(form)


class HostParameterKind(HostedKind):
    """A parameter of a module. Calls bring its value, as that of a variable."""

    name = "parameter of hosts"

    def essence(self, subject: HostedParameter, strategy: Strategy) -> Any:
        return strategy, VariableForm.from_variable(subject.variable)

    def make(self, essence: Any, task: WorkerTask) -> Parameter:
        strategy, form = essence
        return host_of(strategy).attach_parameter(form)


class HostInputKind(ChangingKind):
    """An iterator in the program, for which each host has its own."""

    name = "input of hosts"
    types = (HostsIterator,)

    def subject(self, value: HostsIterator, strategy: Strategy) -> object | None:
        require_own("an iterator", value.strategy, strategy)
        return value

    def label(self, subject: HostsIterator) -> str:
        return "the input"

    def essence(self, subject: HostsIterator, strategy: Strategy) -> Any:
        return strategy, subject.recipe

    def make(self, essence: Any, task: WorkerTask) -> HostInput:
        return HostInput(*essence)

    def state(self, subject: HostsIterator) -> Mapping[str, Any]:
        return {"passes": subject.passes}

    def update(self, made: HostInput, change: Change) -> None:
        made.restart()


class HostExtendedKind(ExtendedKind):
    """The `extended` of the program's strategy."""

    name = "extended of hosts"
    types = (CoresExtended,)


HOST_KINDS = KindTable(
    HostStrategyKind(),
    HostExtendedKind(),
    ResolverKind(),
    CopiedVariableKind(),
    HostParameterKind(),
    ModuleKind(),
    OptimizerKind(),
    HostInputKind(),
)
"""The kinds of objects that stay on hosts."""


# Hosts that fail alike do so at about the same time. Where the first one took long, on a busy
# machine or in loading what it was sent, so may the others.
_GRACE_SECONDS, _LONGEST_GRACE_SECONDS = 5.0, 30.0


class HostsSession:
    """A session with all worker servers that are the hosts of a strategy.

    Raises:
        UnavailableError: A host cannot be reached.
        UnauthenticatedError: A host has another cluster token.
        FailedPreconditionError: A host runs other versions of Python or libraries.
        InvalidArgumentError: Hosts have different cores, or fewer than are wanted.
    """

    def __init__(
        self,
        strategy: CoresStrategy,
        resolver: ClusterResolver,
        job: str,
        num_cores: int | None,
        outcomes: OutcomeForm = PLAIN_OF_HOSTS,
    ) -> None:
        self.calls = 0
        self._closure_pickler = HostsPickler(strategy, HOST_KINDS)
        cluster = resolver.cluster_spec()
        tasks = cluster.task_indices(job)
        addresses = {task: cluster.task_address(job, task) for task in tasks}
        found = sorted(addresses.items(), key=lambda host: str(host[0]))
        self._workers = connected(found, job, resolver._secret(), outcomes=outcomes)
        self._group = HostGroup(self._workers, outcomes)
        try:
            cores = self._same_cores()
            self.topology = Topology.in_order(job, tasks, cores, num_cores)
            meeting_point = self._meeting_point(addresses)
        except BaseException:
            self.close()
            raise
        self.plan = HostPlan(
            self.topology, strategy.steps_per_run, cluster.as_dict(), meeting_point
        )

    def _same_cores(self) -> Sequence[str]:
        """Return the cores that each host has."""
        told = zip(self._on_all(cores_here), self._workers, strict=True)
        found = [tuple(texts(cores, worker.name)) for cores, worker in told]
        for worker, cores in zip(self._workers, found, strict=True):
            if cores != found[0]:
                raise InvalidArgumentError(
                    f"{worker.name} has the cores {', '.join(cores)}, but {self._workers[0].name} "
                    f"has {', '.join(found[0])}; hosts need equally many of one kind"
                )
        return found[0]

    def _meeting_point(self, addresses: dict[int, str]) -> str:
        used = self.topology.used_tasks
        if len(used) == 1:
            return ""
        (port,) = self._group.call([self._closure_pickler.dump(open_meeting_point)])
        if type(port) is not int:
            raise malformed(self._workers[0].name, "something else than a port")
        host = addresses[used[0]].rpartition(":")[0]
        return f"{host}:{port}"

    def _on_all(self, function: Callable[[], Any]) -> list[Any]:
        return self._group.call([self._closure_pickler.dump(function)] * len(self._workers))

    def call(self, works: Sequence[Callable[[], Any]]) -> list[Any]:
        """Have each host that is used do its work, all at the same time; return the results.

        The work is one for each host, or the same for all.
        """
        self._group.release(self._closure_pickler.gone())
        parcels = [self._closure_pickler.dump(work, "what hosts are to do") for work in works]
        used = len(self.topology.used_tasks)
        self.calls += 1
        return self._group.call(parcels * used if len(parcels) == 1 else parcels)

    def ask(self, question: Callable[[], Any]) -> Any:
        """Have the first host alone do something, and return its result."""
        (answer,) = self._group.call([self._closure_pickler.dump(question)])
        return answer

    @property
    def failed(self) -> bool:
        """Whether every later call fails."""
        return self._group.failed

    def fail(self, why: str) -> None:
        self._group.fail(why)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return nothing: a copy of a strategy connects for itself."""

    def close(self) -> None:
        self._group.close(CancelledError("The session with the hosts has ended"))


class HostsPickler(ClosurePickler):
    """Makes parcels for the hosts of a strategy. Thread-safe.

    Variables and parameters are named; their values are sent besides.
    """

    def _write_parameters(self) -> None:
        hosting = hosting_of(self._strategy.extended)
        assert hosting is not None
        hosting.adopter.adopt()


class HostGroup:
    """Sends calls to all hosts at the same time.

    When a host is lost, or alone fails in a call, the others wait for it in vain. All connections
    are then closed, and every later call fails.
    """

    def __init__(self, workers: Sequence[RemoteWorker], outcomes: OutcomeForm) -> None:
        self._workers, self._outcomes = workers, outcomes
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
        pairs = zip(futures, self._workers, strict=False)
        try:
            return [
                self._outcomes.load(future.result().payload, worker.name)
                for future, worker in pairs
            ]
        except StratagemError as error:
            self.fail(f"an answer cannot be read: {error}")
            raise

    @property
    def failed(self) -> bool:
        """Whether every later call fails."""
        return self._failure is not None

    def release(self, handles: Sequence[int]) -> None:
        for worker in self._workers:
            worker.release(handles)

    def fail(self, why: str) -> None:
        """Close all connections, because the hosts cannot go on together."""
        self.close(_broken(why))

    def close(self, failure: StratagemError) -> None:
        """End all sessions; later calls raise the failure."""
        self._failure = self._failure or failure
        for worker in self._workers:
            worker.link.close()

    def _carried_out(
        self, parcels: Sequence[Parcel]
    ) -> tuple[Sequence[Future[ClosureAnswer]], Collection[Future[ClosureAnswer]]]:
        """Have hosts carry out a call; return the answers, and those that wait for a failed host.

        If the wait is interrupted, the connections are closed: nothing else would end the call on
        the hosts.
        """
        pairs = zip(self._workers, parcels, strict=False)
        began = time.monotonic()
        try:
            futures = [worker.call(parcel) for worker, parcel in pairs]
            _, rest = wait(futures, return_when=FIRST_EXCEPTION)
            # All hosts may fail alike. One that does not waits for those that have.
            grace = max(_GRACE_SECONDS, time.monotonic() - began)
            _, waiting = wait(rest, timeout=min(grace, _LONGEST_GRACE_SECONDS))
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
    addresses: Sequence[tuple[int, str]],
    job: str,
    token: str,
    deadlines: Deadlines | None = None,
    outcomes: OutcomeForm = PLAIN_OF_HOSTS,
) -> list[RemoteWorker]:
    """Connect to worker servers, given the index and the "host:port" of each."""
    identity, found = Identity(ROLE_COORDINATOR, token=token), list[RemoteWorker]()
    try:
        for index, address in addresses:
            link = WorkerLink(address, Task(job=job, index=index), identity, deadlines)
            link.outcomes = outcomes
            with Wait("this program", link.peer, link.connect_seconds):
                link.connect()
            found.append(RemoteWorker(index, link, count(1)))
    except BaseException:
        for worker in found:
            worker.link.close()
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
