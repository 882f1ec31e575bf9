"""The public face of training with parameter servers."""

from __future__ import annotations

import logging
import os
from collections import Counter
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakSet

import torch

from stratagem._cluster.device_filters import ClusterDeviceFilters
from stratagem._cluster.tasks import Membership
from stratagem._core.contexts import Scope, entered, require_cross_replica_or_default
from stratagem._core.device_names import canonicalize
from stratagem._hosting.hosting import MadeElsewhere
from stratagem._hosting.optimizer import DistributedOptimizer
from stratagem._hosting.torch_patches import defer_compiler
from stratagem._local.one_copy import default_parameter_device
from stratagem._parameter_server.alone import LocalExtended
from stratagem._parameter_server.checkpointed import CheckpointedStrategy
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._parameter_server.hosting.task import (
    Settings,
    member_of,
    replica_devices,
    servers_of,
    store_of,
)
from stratagem._parameter_server.tables.tables import META_ABOVE
from stratagem._parameter_server.variables.shards import VariablePartitioner
from stratagem._ps_client.moving import Servers
from stratagem._ps_client.transport import Traffic
from stratagem.cluster_resolver import ClusterResolver
from stratagem.cluster_resolver._resolvers import given_or_default
from stratagem.consistency import Consistency, ConsistencyReport, consistency_from
from stratagem_proto.protocol import check_name
from stratagem_proto.v1.cluster_pb2 import ConfigProto

_Self = TypeVar("_Self", bound="ParameterServerStrategy")

_made_here: WeakSet[ParameterServerStrategy] = WeakSet()


class ParameterServerStrategy(CheckpointedStrategy):
    """Variables on parameter servers, replicas in worker processes.

    Every worker runs the same program. The chief (else worker 0) creates the variables, on one
    server after the other, and the other workers attach to them in the same order. A worker reduces
    the gradients of its own replicas and pushes them; the servers apply them. Each `run` starts
    with fresh parameters, and an optimizer's `step` leaves those that it has stepped fresh::

        strategy = ParameterServerStrategy(consistency="async")
        with strategy.scope():
            model = Model()
        optimizer = DistributedOptimizer(torch.optim.Adam(model.parameters()))

        def replica_step(batch):
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()

        for batch in batches:
            strategy.run(replica_step, args=(batch,))

    With one replica in this process, forward, backward and `step` need no `run`: a loop that was
    written for plain PyTorch trains as it is. What others have changed since the last `step` is
    here after the next one, or after `refresh`. A program that is started again while its servers
    run goes on with the variables and the optimizers' state that they hold, and logs a warning that
    says so; a program whose variables differ in names, shapes, dtypes or modules is refused by an
    `AttachmentError`. Restart the servers to begin anew.

    Without a cluster it is a strategy for this process alone.

    Constructing it does not connect to anything.

    Args:
        cluster_resolver: Describes the cluster and which task of it this process is; by default the
            environment variable TF_CONFIG does.
        variable_partitioner: Divides variables into shards, by their rows: one of
            `stratagem.partitioners`, or a function like them. A `Variable` becomes a
            `ShardedVariable`; parameters of modules stay one tensor here, and are several variables
            only on the servers. Without a cluster it is not used.
        consistency: What holds the workers together, for optimizers that do not say otherwise.
            "async": nothing, each worker's push is applied when it arrives. "bounded": likewise,
            but a worker waits while it is too far ahead of the slowest. "sync": all workers'
            gradients of a step are added and applied once, and the next step starts with the
            result. Or a value of `stratagem.consistency`, which says how far ahead, or how many
            contributions are enough.
        placement: Where variables and shards go in the order of their creation. "round_robin": to
            the servers in turn. "balanced": to the one that has the fewest bytes of them; tables
            that store only rows that were written are counted by themselves, as if all rows were.
            With both, tables go to the server of which the fewest lookups a step are expected, one
            of each table, which its parts share; with "balanced" only as long as servers do not
            come to differ by more than 64 MiB for it. Tables without a fixed vocabulary have a part
            on each server.
        pull_dtype: `torch.bfloat16` or `torch.float16`: what trainable variables and rows of
            embedding tables are rounded to when they come for a training step, which halves the
            bytes of float32. Servers keep and step them as they are; all other reads, such as those
            of checkpoints, `refresh`, `state_dict`, snapshots and `run` within `torch.no_grad()`,
            are exact. float16 keeps finite elements finite: they are 65504 at most. Without a
            cluster it is not used.
        fused_steps: Whether the answer to a push also has the values for the worker's next step,
            which saves one request a step. It has an effect where steps are asynchronous, and a
            run pushes once. A step then sees one step later what other workers finish between that
            push and the step; what of a large model they have changed does not come twice. By
            default only a lone worker's steps are fused, which makes no difference to the values.
            Without a cluster it is not used.
        pushes_in_flight: 1 to compute a step while the push of the one before is sent and applied;
            see `flush`. A step then starts with values that lack its worker's own last push, but no
            earlier one, and what others finished since the push before that was sent. Errors of a
            push are raised by the next step. Needs "async" consistency. Steps that became otherwise
            since, runs that push several times, and optimizers with `overlap=True` wait for their
            push as with 0. Takes memory for the gradients and the parameters once more. Without a
            cluster it is not used.
        num_replicas_per_worker: Replicas in this process, on its first GPUs, or without any on the
            CPUs of `config.set_logical_cpus`; by default one for each GPU, or one.
        token: Secret of the cluster; by default the resolver's `cluster_token`, or the contents of
            the file that STRATAGEM_TOKEN_FILE names.
        device_filters: Which servers each task of the cluster sees; give the same to all. Variables
            are placed on those that the chief sees. A task does not contact the others.
        session_config: Its `device_filters` are further filters of every task. Its
            `isolate_session_state` has no effect: variables are always shared.
        connect_seconds: How long a server may be away before its requests fail.
        peer_seconds: How long to wait for other workers: for the chief to create variables, and for
            contributions to a synchronous step.
        buffers: What becomes of the buffers of modules, such as the running statistics of batch
            norm, of which each worker has its own. "own": they stay so. "mean": at each `barrier`
            those of floating dtype become their mean over the workers, on all workers; an
            evaluation or `save` after a barrier has it. Without a cluster it is not used.

    Raises:
        InvalidArgumentError: The cluster has no parameter servers, or filters hide all of them,
            this process's task is not given, or another argument is out of its range.
        InvalidTypeError: `cluster_resolver` is none.

    Spec: PS1-1 to PS1-12, PSV-1 to PSV-10, PRT-1 to PRT-13.
    """

    __module__ = "stratagem"

    _coordinator: object | None = None

    def __init__(  # noqa: PLR0913 - independent settings, all but the first by name
        self,
        cluster_resolver: ClusterResolver | None = None,
        variable_partitioner: VariablePartitioner | None = None,
        *,
        consistency: Consistency | str = "async",
        placement: str = "round_robin",
        pull_dtype: torch.dtype | None = None,
        fused_steps: bool | None = None,
        pushes_in_flight: int = 0,
        num_replicas_per_worker: int | None = None,
        token: str | None = None,
        device_filters: ClusterDeviceFilters | None = None,
        session_config: ConfigProto | None = None,
        connect_seconds: float = 60.0,
        peer_seconds: float = 300.0,
        buffers: str = "own",
    ) -> None:
        self._passages: Counter[str] = Counter()
        self._resolver = given_or_default(cluster_resolver)
        self._settings = Settings(
            variable_partitioner=variable_partitioner,
            consistency=consistency_from(consistency),
            placement=placement,
            pull_dtype=pull_dtype,
            fused_steps=fused_steps,
            pushes_in_flight=pushes_in_flight,
            num_replicas_per_worker=num_replicas_per_worker,
            token=token,
            device_filters=device_filters,
            session_config=session_config,
            connect_seconds=connect_seconds,
            peer_seconds=peer_seconds,
            buffers=buffers,
        )
        super().__init__(self._new_extended())

    def _new_extended(self) -> ParameterServerExtended | LocalExtended:
        devices = replica_devices(self._settings.num_replicas_per_worker)
        if not self._resolver.cluster_spec():
            warn_of_torchrun()
            names = [canonicalize(device) for device in devices]
            home = canonicalize(default_parameter_device(names))
            return LocalExtended(self, names, home)
        defer_compiler()
        member = member_of(self._resolver)
        servers = servers_of(member, self._resolver, self._settings)
        elsewhere = self._elsewhere(member)
        if elsewhere is None:
            _made_here.add(self)
        return ParameterServerExtended(
            self,
            member,
            store_of(member, servers, self._settings),
            [canonicalize(device, member.name) for device in devices],
            self._settings,
            elsewhere,
        )

    def _elsewhere(self, member: Membership) -> MadeElsewhere | None:
        """Return what says that this process makes nothing, if it does not."""
        return None

    @property
    def cluster_resolver(self) -> ClusterResolver:
        """The resolver that was given, else that of TF_CONFIG. Spec: STR-4."""
        return self._resolver

    def scope(
        self: _Self, name: str | None = None, *, meta_above: float = META_ABOVE
    ) -> Scope[_Self]:
        """Return a context manager that makes this strategy the current one.

        Modules may have parameters that are larger than any machine: those get no memory here, what
        initialises them is recorded, and the servers store the rows that are written.

        Args:
            name: Prefix for the names of the modules' parameters.
            meta_above: The most bytes of a parameter that gets memory in this process; also the
                most that is read of a table as a whole.

        Raises:
            ContextError: As of `Strategy.scope`.
        """
        if isinstance(self.extended, LocalExtended):
            return super().scope(name)
        resources = partial(self.extended._table_scope, name, meta_above)
        return Scope(self, name, resources=resources)

    def refresh(self) -> None:
        """Bring parameters and servers together, as each `run` does at its start.

        What this process wrote to parameters goes to the servers; then parameters get their values
        of now. With "sync" consistency this waits for the step that this worker has contributed to
        last, with "bounded" for workers that are too far behind.

        Raises:
            ContextError: A replica is running, or another strategy is in charge.
            UnavailableError: A server cannot be reached.
            DeadlineExceededError: Other workers were not fast enough; they are named.
            AbortedError: A worker is gone without which a step cannot be completed.
        """
        require_cross_replica_or_default(self.extended, "refresh")
        with entered(self):
            self.extended._before_replicas()

    def flush(self) -> None:
        """Wait until the push in flight is applied, if there is one.

        Whatever reads or writes variables outside of `run` waits for it too, and so do `refresh`,
        `barrier`, `save`, `snapshot` and `close`.

        Raises:
            StratagemError: It could not be applied, which is not raised again.
        """
        self.extended._cluster.flush()

    def barrier(self, name: str = "barrier", timeout: float | None = None) -> None:
        """Wait until every worker of the cluster has come here.

        Afterwards parameters are fresh: the chief can evaluate what all have trained; and with
        `buffers="mean"` they are the mean of all workers. An evaluator, for which nobody waits,
        waits for nobody. A worker that is started again alone meets the others at the barrier where
        they wait, and does not wait where all others have been, since they will not come again.

        Args:
            name: Which barrier. Workers pass barriers of one name in turn.
            timeout: Longest wait in seconds; by default `peer_seconds`.

        Raises:
            DeadlineExceededError: Naming the workers that did come.
            ContextError: A replica is running, or another strategy is in charge.
            FailedPreconditionError: The workers run what a `ClusterCoordinator` schedules.
        """
        require_cross_replica_or_default(self.extended, "barrier")
        check_name(name, "barrier")
        if isinstance(self.extended, ParameterServerExtended):
            self.extended._coordination.require_programs_of_workers(f"barrier({name!r})")
        self.extended._cluster.barrier(name, self._passages[name], timeout)
        self._passages[name] += 1
        self.refresh()

    @property
    def servers(self) -> Servers:
        """The servers, between which tasks can move while programs use them.

        Raises:
            FailedPreconditionError: There is no cluster.
        """
        return self.extended._cluster.servers

    def traffic(self) -> Traffic:
        """Return how many bytes have crossed the wire so far; none without a cluster.

        Two of them differ by what was sent and received in between.
        """
        return self.extended._cluster.traffic

    def set_consistency(
        self, consistency: Consistency | str, optimizer: DistributedOptimizer | str | None = None
    ) -> None:
        """Change what holds the workers together, while they train.

        Only the chief's call has an effect. The new consistency holds for all workers from the
        first step that no worker has begun. A worker learns of it when it asks for its next permit.
        A worker that is behind skips the numbers of the steps between, unless these are
        synchronous.

        A worker that has finished its loop may keep the others waiting: if loops have a fixed
        number of steps, call `barrier` before the change and after it. `num_replicas_in_sync` and
        the sharing of datasets stay what the strategy was made with.

        Args:
            consistency: As in the constructor.
            optimizer: Of which optimizer, or its name; by default of all that exist.

        Raises:
            InvalidArgumentError: The cluster has too few workers for it, or there is no such
                optimizer.
            ContextError: A replica is running, or another strategy is in charge.
        """
        require_cross_replica_or_default(self.extended, "set_consistency")
        name = optimizer.name if isinstance(optimizer, DistributedOptimizer) else optimizer
        self.extended._cluster.set_consistency(consistency_from(consistency), name)

    def consistency_report(self) -> dict[str, ConsistencyReport]:
        """Ask the servers what holds for each optimizer, and how its workers fare.

        Returns:
            By name of the optimizer. Empty without a cluster.

        Raises:
            UnavailableError: The first server cannot be reached.
        """
        return self.extended._cluster.consistency_report()

    def close(self) -> None:
        """End the sessions with the servers. The variables stay there.

        A coordinator gives up what it was to run, and leaves its workers.

        Done by itself at the end of the program or of a `with` block.
        """
        self.extended._close()

    @staticmethod
    def close_all() -> None:
        """Close all strategies of this process that are on a cluster.

        A cell of a notebook that begins with it can be run again: the strategy that it made before
        has lost its name, but lives on in its model. Those of worker servers stay open.

        Raises:
            Exception: As `close`, once all are closed.
        """
        with ExitStack() as closing:
            for strategy in [*_made_here]:
                closing.callback(strategy.close)

    def __deepcopy__(self: _Self, memo: dict[int, Any]) -> _Self:
        """Return another strategy, without what was made under this one.

        With a cluster it is as if it were constructed again: it has sessions of its own, and no
        coordinator. Spec: PS2-17, CTX-41.
        """
        if isinstance(self.extended, LocalExtended):
            return super().__deepcopy__(memo)
        settings = self._settings.arguments()
        memo[id(self)] = copied = type(self)(self._resolver, **settings)
        return copied

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_LOG = logging.getLogger("stratagem")


def warn_of_torchrun() -> None:
    """Say that a process of `torchrun` trains a model of its own, as no cluster is described.

    Its first process says nothing: it may be there to train alone, as a program that is written for
    several strategies does.
    """
    rank = os.environ.get("RANK", "")
    if rank.isdecimal() and int(rank) > 0:
        size = os.environ.get("WORLD_SIZE", "?")
        _LOG.warning(
            "ParameterServerStrategy has no cluster, and process %s of %s trains a model of its "
            "own: torchrun starts no parameter servers. Start the program by `stratagem run --ps 1 "
            "--workers %s`, or set TF_CONFIG",
            rank,
            size,
            size,
        )
