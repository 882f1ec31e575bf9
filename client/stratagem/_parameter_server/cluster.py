"""What a strategy does with its servers, all of its workers, and a coordinator."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from stratagem._checkpoints.restoring import RestoreStatus, Resumption
from stratagem._checkpoints.series import Series
from stratagem._cluster.tasks import Membership
from stratagem._core.contexts import entered, runs_on_a_worker
from stratagem._core.protocols import AnyStrategy
from stratagem._core.variable_creation import NextCreator
from stratagem._core.variables import Variable
from stratagem._input.iterator import DistributedDataset
from stratagem._input.pipeline import InputPipeline
from stratagem._input.read_order import can_be_read_again
from stratagem._parameter_server.checkpoints.progress import COUNTS_OR_COORDINATES
from stratagem._parameter_server.checkpoints.publishing import PeriodicPublishing
from stratagem._parameter_server.checkpoints.saving import snapshot_of
from stratagem._parameter_server.hosting.steps import encoded_consistency, report_of
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.meeting import BufferMeans, Gathering
from stratagem._parameter_server.remote_hosting import RemoteHosting
from stratagem._ps_client.moving import Servers
from stratagem._ps_client.requests.coordination import barrier, change, describe
from stratagem._ps_client.transport import Traffic
from stratagem._strategies.strategy import Strategy
from stratagem._strategies.strategy_methods import no_servers
from stratagem.consistency import Consistency, ConsistencyReport
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy

# Where all meet when the last checkpoint of a run is there.
_FINISHED = "stratagem/finished"
# Where all meet once they have read each other's buffers, after a barrier of that name.
_AVERAGED = "{}/averaged"


class TrainingCluster:
    """The servers and workers of one strategy.

    Args:
        container_strategy: Returns the strategy.
        membership: Which task of the cluster this process is.
        store: The variables on the servers.
        hosting: What this program has made, loaded and saved of them.
        buffer_means: Averages buffers where workers meet; None if they are not.
    """

    def __init__(
        self,
        container_strategy: Callable[[], Strategy],
        membership: Membership,
        store: RemoteStore,
        hosting: RemoteHosting,
        buffer_means: BufferMeans | None,
    ) -> None:
        self._container_strategy = container_strategy
        self._membership = membership
        self._store = store
        self._hosting = hosting
        self._loaded = hosting.loaded
        self._checkpoints = hosting.checkpoints
        self._buffer_means = buffer_means
        self._roll_backs = 0
        self._gathering = Gathering(membership, lambda: entered(container_strategy()))

    # Meeting.

    def barrier(self, name: str, passed: int, timeout: float | None) -> None:
        """Wait for all workers, where this one has passed the barrier so often before.

        See `ParameterServerStrategy.barrier`. Without a timeout, wait for `peer_seconds`.
        """
        if self._membership.task_type == "evaluator":
            return  # a cluster of its own
        # After all have met, nobody has to wait for what the chief has set before.
        self._loaded.carry()
        with self._averaging_buffers(name, passed, timeout):
            self.meet(name, passed, timeout)
        self._loaded.agree(0.0)

    @contextmanager
    def _averaging_buffers(self, name: str, passed: int, timeout: float | None) -> Iterator[None]:
        if self._buffer_means is None:
            yield
            return
        with entered(self._container_strategy()):
            self._buffer_means.offer()
            yield
            self._buffer_means.accept()
        # Until all have read, nobody may write what is to be averaged the next time.
        self.meet(_AVERAGED.format(name), passed, timeout)

    def meet(self, name: str, passed: int, timeout: float | None) -> None:
        """Wait for all workers; as `barrier`, which leaves nothing to agree on, too."""
        wait = self._store.peer_seconds if timeout is None else timeout
        request = barrier(name, passed, self._membership.num_workers, wait)
        self._store.report_inputs()
        # Those who come later may have to wait for what this worker has finished.
        with self._store.reporting():
            # One server is enough to meet at.
            self._hosting.meet(lambda: self._store.ask_first(request))

    def gather(self, tensor: torch.Tensor, meet: Callable[[], None]) -> list[torch.Tensor]:
        """Return the tensors of all workers; see `Gathering.gather`."""
        return self._gathering.gather(tensor, meet)

    # Consistency.

    def set_consistency(self, consistency: Consistency, optimizer: str | None) -> None:
        """Change what holds workers together, of all optimizers or of one.

        The task that creates variables does.
        """
        step_tracker = self._store.step_tracker
        if optimizer is not None:
            step_tracker.require(optimizer)
        if not self._membership.creates:
            return
        for name in step_tracker.optimizers if optimizer is None else [optimizer]:
            self._store.announce(name)
            self._store.ask_first(change(name, encoded_consistency(consistency)))

    def consistency_report(self) -> dict[str, ConsistencyReport]:
        """Return what holds workers together, by optimizer."""
        self._store.contributions.settle()
        step_tracker = self._store.step_tracker
        if not self._checkpoints.counter.is_known:
            # It takes the step after what it is told as its next one.
            for name in step_tracker.optimizers:
                step_tracker.go_on(name)
        groups = self._store.ask_first(describe())
        before = step_tracker.committed_before
        return {group.group: report_of(group, before(group.group)) for group in groups}

    # Checkpoints.

    def register_for_checkpointing(self, name: str, stateful: Any) -> None:
        """Have checkpoints keep an object of this worker."""
        self._checkpoints.states.register(name, stateful)

    def save(
        self, root: str | os.PathLike[str], series: Series, extra: Mapping[str, Any]
    ) -> Future[None]:
        """Save all servers at one moment; see `ParameterServerStrategy.save`."""
        self._hosting.before_cut()
        return self._checkpoints.save(root, series, extra)

    def restore(self, path: str | os.PathLike[str], strict: bool) -> RestoreStatus:
        """Restore all servers; see `ParameterServerStrategy.restore`."""
        # What servers have lost cannot be read before it has the values of the checkpoint.
        if self._store.training.is_whole:
            self._hosting.before_cut()
        restoration = self._checkpoints.restore(path, strict)
        # The parameters of modules are to have the values at once.
        self._refresh()
        return restoration

    def roll_back(self, path: str | os.PathLike[str], strict: bool) -> RestoreStatus:
        """Restore all servers while all workers wait; see `ParameterServerStrategy.roll_back`."""
        passed = self._roll_backs
        status = self._checkpoints.roll_back(
            path, strict, lambda name: self.barrier(name, passed, None)
        )
        self._roll_backs += 1
        self._refresh()
        return status

    def resume(
        self, path: str | os.PathLike[str], begin: Callable[[], object] | None
    ) -> Resumption:
        """Begin or join a run; see `ParameterServerStrategy.resume`."""
        self._hosting.require_countable(resumes=True)
        self._checkpoints.require_first(bool(self._hosting.drop_writes()))

        def prepare() -> None:
            if begin is not None:
                begin()
            self._hosting.before_cut()

        if self._store.training.is_whole:
            self._hosting.before_cut()
        resumption = self._checkpoints.resume(path, prepare, partial(self._finish, path))
        if any([optimizer._resumed() for optimizer in self._hosting.own_steps()]):
            self._go_back(path, resumption)
        self._refresh()
        if resumption.ended:
            # The one before may have ended where all others wait.
            self.barrier(_FINISHED, 0, None)
        return resumption

    def _go_back(self, path: str | os.PathLike[str], resumption: Resumption) -> None:
        """Have all go back to a checkpoint, since all workers were lost with what they held."""
        _LOG.warning(
            "all workers were lost, and with them what dense parameters had learnt since they were "
            "saved: the run goes back to the last checkpoint in %r, tables included",
            str(path),
        )
        try:
            self.roll_back(path, strict=True)
        except NotFoundError as error:
            raise FailedPreconditionError(
                "all workers were lost, and with them what dense parameters had learnt, which "
                f"tables on the servers were trained with; and {error.message}. Restart the "
                "servers to begin anew, and save now and then: all go back to what was saved"
            ) from error
        resumption.position = self._checkpoints.counter.position

    def _finish(self, path: str | os.PathLike[str], extra: Mapping[str, Any], keep: int) -> None:
        counter = self._checkpoints.counter
        counter.require_outside("finish()")
        counter.require_shared("finish()")
        if counter.ended:
            return
        self.barrier("stratagem/finish", 0, None)
        with entered(self._container_strategy()):
            self._hosting.before_cut()
            self._checkpoints.finish(path, extra, keep)
        self.barrier(_FINISHED, 0, None)

    def steps(self, stop: int, start: int | None) -> Iterator[int]:
        """Count the steps of the program; see `ParameterServerStrategy.steps`."""
        self._hosting.require_countable(resumes=False)
        return self._checkpoints.counter.steps(stop, start)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read all as of one moment; see `ParameterServerStrategy.snapshot`."""
        strategy = self._container_strategy()
        with entered(strategy):
            self._hosting.before_cut()
        with snapshot_of(self._store):
            with entered(strategy):
                self._refresh()
            yield

    def publish(self) -> int:
        """Publish a version; see `ParameterServerStrategy.publish`."""
        publisher = self._checkpoints.publisher("publish()")
        self._hosting.keep()
        with entered(self._container_strategy()):
            self._refresh()
        return publisher.publish()

    def publish_every(self, seconds: float | None, steps: int | None) -> PeriodicPublishing:
        """Publish now and then; see `ParameterServerStrategy.publish_every`."""
        self._hosting.require_none_kept("publish_every()")
        return self._checkpoints.publisher("publish_every()").every(seconds, steps)

    def versions_behind(self, version: int) -> int:
        """Return how many versions came after one; see `ParameterServerStrategy`."""
        return self._checkpoints.publisher("versions_behind()").versions_behind(version)

    def _refresh(self) -> None:
        self._container_strategy().extended._before_replicas()

    # Servers.

    @property
    def servers(self) -> Servers:
        """The servers, between which tasks can move."""
        group = self._store.servers
        return Servers(lambda: group.known, group.identity)

    # Traffic.

    @property
    def traffic(self) -> Traffic:
        """What was exchanged with the servers."""
        return self._store.servers.traffic

    def flush(self) -> None:
        """Wait for the pushes in flight."""
        self._store.pusher.flush()


class OneProcess:
    """What takes the place of a `TrainingCluster` where there is no cluster."""

    def barrier(self, name: str, passed: int, timeout: float | None) -> None:
        """This process is the only one."""

    def gather(self, tensor: torch.Tensor, meet: Callable[[], None]) -> list[torch.Tensor]:
        """Return the tensor of this process alone."""
        return [tensor]

    def set_consistency(self, consistency: Consistency, optimizer: str | None) -> None:
        """There are no other workers."""

    def consistency_report(self) -> dict[str, ConsistencyReport]:
        """Return that nothing holds workers together."""
        return {}

    def snapshot(self) -> AbstractContextManager[None]:
        """Return a context in which nobody else changes anything: any."""
        return nullcontext()

    def publish(self) -> int:
        """Raise FailedPreconditionError: there are no servers."""
        raise no_servers("publish()")

    def publish_every(self, seconds: float | None, steps: int | None) -> PeriodicPublishing:
        """Raise FailedPreconditionError: there are no servers."""
        raise no_servers("publish_every()")

    def versions_behind(self, version: int) -> int:
        """Raise FailedPreconditionError: there are no servers."""
        raise no_servers("versions_behind()")

    @property
    def servers(self) -> Servers:
        """Raise FailedPreconditionError: there are none."""
        raise FailedPreconditionError(
            "this strategy has no cluster, and so no servers between which tasks could move; give "
            "it a resolver, or set TF_CONFIG"
        )

    @property
    def traffic(self) -> Traffic:
        """Nothing is exchanged."""
        return Traffic()

    def flush(self) -> None:
        """Nothing is ever in flight."""


class UnbuiltDataset(DistributedDataset):
    """A `DistributedDataset` that each worker makes when a function reads it.

    Spec: PS2-13.
    """

    def __init__(
        self,
        strategy: AnyStrategy,
        build: Callable[[Any], DistributedDataset],
        dataset: Any,
    ) -> None:
        self._strategy = strategy
        self._build, self._dataset = build, dataset
        self._made: DistributedDataset | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> UnbuiltDataset:
        """Return one of the same strategy, over a copy of data that cannot be read again."""
        distribute, dataset = self._build, self._dataset
        if not can_be_read_again(dataset):
            dataset = copy.deepcopy(dataset, memo)
        return UnbuiltDataset(self._strategy, distribute, dataset)

    @property
    def _pipeline(self) -> InputPipeline:
        """Of the worker that runs this.

        Raises:
            InvalidArgumentError: None does.
        """
        if not runs_on_a_worker():
            raise InvalidArgumentError(
                "To use this dataset, you need to pass this dataset to "
                "ClusterCoordinator.create_per_worker_dataset: workers read it, and "
                "not the coordinator's program, which schedules functions that do"
            )
        if self._made is None:
            self._made = self._build(self._dataset)
        return self._made._pipeline


_LOG = logging.getLogger("stratagem")


class Coordination:
    """What a strategy knows of its program's `ClusterCoordinator`, if there is one.

    With one, functions run on workers, each of which has all of the data, and in the program itself
    only by mistake, or to evaluate.

    Spec: PS2-8, PS2-10 to PS2-13.
    """

    def __init__(self, container_strategy: Callable[[], Strategy], active: bool) -> None:
        self.active = active
        self._container_strategy = container_strategy
        self._make_per_worker: Callable[..., Variable] | None = None
        self._end: Callable[[], None] = _nothing
        self._is_done: Callable[[], bool] = _is_done

    def begin(
        self,
        make_per_worker: Callable[..., Variable],
        end: Callable[[], None],
        is_done: Callable[[], bool],
    ) -> None:
        """Note that there is a coordinator from now on.

        Args:
            make_per_worker: Makes a variable of which each worker has its own; takes the arguments
                of `Variable`.
            end: Called when the strategy is closed.
            is_done: Says whether all functions have ended, or raises the error of one.
        """
        self.active = True
        self._make_per_worker = make_per_worker
        self._end = end
        self._is_done = is_done

    def require_done(self, method: str) -> None:
        """Check that no function is scheduled, which may use what a method deletes.

        Raises:
            FailedPreconditionError: One is.
            Exception: As `ClusterCoordinator.done`.
        """
        if not self._is_done():
            raise FailedPreconditionError(
                f"{method} was called while functions are scheduled, which may use what it "
                "deletes; call coordinator.join() before"
            )

    def close(self) -> None:
        """Let the coordinator end."""
        self._end()

    @property
    def is_off_workers(self) -> bool:
        """Whether there is a coordinator, and this is not one of its workers."""
        return self.active and not runs_on_a_worker()

    def create_per_worker(self, next_creator: NextCreator, given: dict[str, Any]) -> Variable:
        """Create a variable of which each worker has its own.

        Raises:
            InvalidArgumentError: There is no coordinator.
        """
        if self._make_per_worker is None:
            raise InvalidArgumentError(
                f"variable {given['name']!r} is to be a per_worker_variable, but there "
                "are no workers that functions are scheduled on; construct a "
                "ClusterCoordinator with this strategy first"
            )
        return next_creator(**given, make=self._make_per_worker)

    def unbuilt(self, build: Callable[[Any], Any], dataset: Any) -> Any:
        """Return a dataset that each worker builds for itself, of a dataset or a function."""
        return UnbuiltDataset(self._container_strategy(), build, dataset)

    def require_no_functions(self) -> None:
        """Refuse to count steps, of which scheduled functions would be a part.

        Raises:
            FailedPreconditionError: There is a coordinator.
        """
        if self.active:
            raise FailedPreconditionError(COUNTS_OR_COORDINATES)

    def require_programs_of_workers(self, method: str) -> None:
        """Refuse a method by which the programs of workers wait for each other.

        Raises:
            FailedPreconditionError: There is a coordinator.
        """
        if self.active:
            raise FailedPreconditionError(
                f"{method} waits for the programs of all workers, but with a ClusterCoordinator "
                "workers run what its program schedules, and no programs of their own that would "
                "come; call coordinator.join() in the coordinator's program, which waits for all "
                "that is scheduled. Functions on workers wait for no others"
            )

    def warn_off_workers(self, method: str) -> None:
        """Warn of what the program does itself while its workers wait."""
        if self.active and not runs_on_a_worker():
            _LOG.warning(
                "`%s` of a ParameterServerStrategy is invoked without using "
                "`ClusterCoordinator.schedule`, so that the coordinator's program does "
                "the work while workers wait; call it in a function that is scheduled",
                method,
            )


def _is_done() -> bool:
    """Nothing is scheduled."""
    return True


def _nothing() -> None:
    """There is no coordinator to end."""
