"""What a strategy does with its servers, and all of its workers, as a whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from stratagem._checkpoints.restoring import RestoreStatus
from stratagem._cluster.tasks import Membership
from stratagem._core.contexts import entered
from stratagem._parameter_server.checkpoints.checkpoints import ClusterCheckpoints
from stratagem._parameter_server.checkpoints.cut import snapshot_of
from stratagem._parameter_server.checkpoints.saving import Series
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.loaded_values import LoadedValues
from stratagem._parameter_server.pushing.step_tracker import encoded_consistency, report_of
from stratagem._parameter_server.worker_rows import Gathering, WorkerRows
from stratagem._ps_client.moving.servers import Servers
from stratagem._ps_client.requests.coordination import barrier, change, describe
from stratagem._ps_client.traffic import Traffic
from stratagem.consistency import Consistency, ConsistencyReport
from stratagem_proto.errors import FailedPreconditionError

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy

Named = Iterable[tuple[str, torch.Tensor]]


class BufferMeans:
    """Gives the floating buffers of all workers their mean when they meet."""

    def __init__(self, membership: Membership, buffers: Named) -> None:
        self._buffers = buffers
        self._rows = WorkerRows(membership, "stratagem/buffers")

    def offer(self) -> None:
        """Write this worker's buffers; in the strategy's scope, before all meet."""
        own = self._own()
        if own:
            self._rows.offer(torch.cat([each.reshape(-1).cpu().double() for each in own]))

    def accept(self) -> None:
        """Replace this worker's buffers by the mean; after all have met."""
        own = self._own()
        if not own:
            self._rows.skip()
            return
        sizes = [each.numel() for each in own]
        mean = self._rows.take(sum(sizes), torch.double).mean(0)
        for each, part in zip(own, mean.split(sizes), strict=True):
            each.copy_(part.reshape(each.shape))

    def _own(self) -> list[torch.Tensor]:
        return [each.detach() for _, each in self._buffers if each.is_floating_point()]


class TrainingCluster:
    """The servers and workers of one strategy.

    Args:
        container_strategy: Returns the strategy.
        membership: Which task of the cluster this process is.
        store: The variables on the servers.
        loaded: What this program has loaded and the servers may not have yet.
        checkpoints: The strategy's checkpoints.
        buffer_means: Averages buffers where workers meet; None if they are not.
    """

    def __init__(
        self,
        container_strategy: Callable[[], Strategy],
        membership: Membership,
        store: RemoteStore,
        loaded: LoadedValues,
        checkpoints: ClusterCheckpoints,
        buffer_means: BufferMeans | None,
    ) -> None:
        self._container_strategy = container_strategy
        self._membership = membership
        self._store = store
        self._loaded = loaded
        self._checkpoints = checkpoints
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
        with self._averaging_buffers():
            self.meet(name, passed, timeout)
        self._loaded.agree(0.0)

    @contextmanager
    def _averaging_buffers(self) -> Iterator[None]:
        if self._buffer_means is None:
            yield
            return
        with entered(self._container_strategy()):
            self._buffer_means.offer()
            yield
            self._buffer_means.accept()

    def meet(self, name: str, passed: int, timeout: float | None) -> None:
        """Wait for all workers; as `barrier`, which leaves nothing to agree on, too."""
        wait = self._store.peer_seconds if timeout is None else timeout
        request = barrier(name, passed, self._membership.num_workers, wait)
        self._store.report_inputs()
        # Those who come later may have to wait for what this worker has finished.
        with self._store.reporting():
            # One server is enough to meet at.
            self._store.ask_first(request)

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
        groups = self._store.ask_first(describe())
        return {group.group: report_of(group) for group in groups}

    # Checkpoints.

    def register_for_checkpointing(self, name: str, stateful: Any) -> None:
        """Have checkpoints keep an object of this worker."""
        self._checkpoints.states.register(name, stateful)

    def save(
        self, root: str | os.PathLike[str], series: Series, extra: Mapping[str, Any]
    ) -> Future[None]:
        """Save all servers at one moment; see `ParameterServerStrategy.save`."""
        self._refresh()
        return self._checkpoints.save(root, series, extra)

    def restore(self, path: str | os.PathLike[str], strict: bool) -> RestoreStatus:
        """Restore all servers; see `ParameterServerStrategy.restore`."""
        # What servers have lost cannot be read before it has the values of the checkpoint.
        if self._store.training.is_whole:
            self._refresh()
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

    def steps(self, stop: int, start: int | None) -> Iterator[int]:
        """Count the steps of the program; see `ParameterServerStrategy.steps`."""
        return self._checkpoints.counter.steps(stop, start)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read all as of one moment; see `ParameterServerStrategy.snapshot`."""
        strategy = self._container_strategy()
        with entered(strategy):
            self._refresh()
        with snapshot_of(self._store):
            with entered(strategy):
                self._refresh()
            yield

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
        self._store.pushing.flush()


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

    def steps(self, stop: int, start: int | None) -> Iterator[int]:
        """Nobody else keeps the place of this program."""
        return iter(range(start or 0, stop))

    def snapshot(self) -> AbstractContextManager[None]:
        """Return a context in which nobody else changes anything: any."""
        return nullcontext()

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
