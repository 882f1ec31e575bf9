"""What a strategy with parameter servers is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from stratagem._cluster.tasks import Membership
from stratagem._core import device_names
from stratagem._core.assignment import Write
from stratagem._core.contexts import current_replica_id, entered
from stratagem._core.device_names import DeviceName, torch_device
from stratagem._core.distributed_variables import AggregatingVariable
from stratagem._core.options import (
    CommunicationOptions,
    InputContext,
    ReduceOp,
    VariableSynchronization,
)
from stratagem._core.reduction import Axis
from stratagem._core.update_functions import smallest_by_name
from stratagem._core.variable_creation import NextCreator
from stratagem._core.variables import Variable
from stratagem._hosting.hosting import MadeElsewhere
from stratagem._hosting.other_steps import workers
from stratagem._input.iterator import DistributedIterator
from stratagem._input.lookahead import Lookahead
from stratagem._input.options import AutoShardPolicy, InputOptions
from stratagem._parameter_server.cluster import (
    Coordination,
    TrainingCluster,
)
from stratagem._parameter_server.forgetting import Forgetting
from stratagem._parameter_server.hosting.creation import RemoteVariables, run_update
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.hosting.task import Settings
from stratagem._parameter_server.meeting import BufferMeans
from stratagem._parameter_server.remote_hosting import RemoteHosting
from stratagem._parameter_server.tables.lookahead import RowFetcher
from stratagem._parameter_server.variables.sharded_variable import ShardedCreation, ShardedVariable
from stratagem._parameter_server.variables.shards import VariablePlacement
from stratagem._parameter_server.variables.variable import RemoteVariable
from stratagem._strategies.extended import StrategyExtended
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError
from stratagem_proto.input_order import BatchRead
from stratagem_proto.v1.cluster_pb2 import ConfigProto

if TYPE_CHECKING:
    from stratagem._input.sharding import InputWorker
    from stratagem._strategies.strategy import Strategy

_SEED_NAME = "stratagem/shuffling_seed"


class WorkerExtended(StrategyExtended):
    """Runs and reduces the replicas of this process, and divides its input.

    Args:
        container_strategy: The strategy.
        membership: Which task of the cluster this process is.
        devices: Full names of the devices of this worker's replicas.
        synchronous: Whether the workers take their steps together, so that their replicas are in
            sync.
        coordinated: Whether a coordinator has functions run here.

    Spec: PS1-4, PS1-7 to PS1-9.
    """

    def __init__(
        self,
        container_strategy: Strategy,
        membership: Membership,
        devices: Sequence[str],
        synchronous: bool,
        coordinated: bool,
    ) -> None:
        super().__init__(container_strategy)
        self._default_device = membership.name
        self._membership = membership
        self._devices = tuple(devices)
        self._synchronous = synchronous
        self._coordination = Coordination(self._container_strategy, coordinated)
        has_others = membership.trains and membership.num_workers > 1
        workers.add(container_strategy, has_others)
        self._seed: Variable | None = None
        self._loaders, self._datasets = count(), count()

    @property
    def experimental_between_graph(self) -> bool:
        return True

    # The task.

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return self._devices

    @property
    def experimental_should_init(self) -> bool:
        return self._membership.is_chief

    @property
    def should_checkpoint(self) -> bool:
        return self._membership.is_chief

    @property
    def should_save_summary(self) -> bool:
        return self._membership.is_chief

    def _update_config_proto(self, config: ConfigProto) -> None:
        # Workers share the variables on the servers, and do not call each other.
        config.isolate_session_state = False
        member = self._membership
        coordinated = self._coordination.active
        filters = member.coordinated_filters if coordinated else member.session_filters
        config.device_filters[:] = filters

    # Replicas.

    def _replica_devices(self) -> Sequence[Any]:
        return [[device_names.current()]]

    @property
    def _num_replicas_in_sync(self) -> int:
        workers = self._membership.num_workers if self._synchronous else 1
        return workers * self._num_local_replicas

    @property
    def _num_local_replicas(self) -> int:
        return len(self._devices)

    @property
    def _first_replica_id(self) -> int:
        number = self._membership.number if self._synchronous else 0
        return number * self._num_local_replicas

    # Input.

    def _input_context(self) -> InputContext:
        in_sync = self._num_replicas_in_sync
        if self._coordination.active:
            return InputContext(num_replicas_in_sync=in_sync)
        return InputContext(self._membership.num_workers, self._membership.number, in_sync)

    def _input_worker(self) -> InputWorker:
        worker = super()._input_worker()
        return replace(worker, seed=self._shuffling_seed, number=next(self._datasets))

    def _shuffling_seed(self) -> int:
        """Return the seed of the next loader, which is the same on all workers.

        It is the chief's, which a worker that comes back finds again, and the number of the loader,
        since one that is made anew for each epoch is to have another order in each.
        """
        if self._seed is None:
            drawn = torch.initial_seed() % 2**63
            with entered(self._container_strategy()):
                self._seed = Variable(drawn, trainable=False, name=_SEED_NAME)
        return (int(self._seed.numpy()) + next(self._loaders)) % 2**63

    def _distribute_dataset(
        self, dataset: Any, options: InputOptions | None, auto_shard_policy: AutoShardPolicy | int
    ) -> Any:
        built = super()._distribute_dataset(dataset, options, auto_shard_policy)
        if not self._coordination.is_off_workers:
            return built
        distribute = self._container_strategy().experimental_distribute_dataset
        build = partial(distribute, options=options, auto_shard_policy=auto_shard_policy)
        return self._coordination.unbuilt(build, dataset)

    def _distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None
    ) -> Any:
        if not self._coordination.is_off_workers:
            return super()._distribute_datasets_from_function(dataset_fn, options)
        distribute = self._container_strategy().distribute_datasets_from_function
        return self._coordination.unbuilt(partial(distribute, options=options), dataset_fn)

    # Values.

    def _reduce(self, reduce_op: ReduceOp, value: Any) -> Any:
        self._coordination.warn_off_workers("reduce")
        return super()._reduce(reduce_op, value)

    def _reduce_axes(self, reduce_op: ReduceOp, value: Any, axis: Axis) -> Any:
        self._coordination.warn_off_workers("reduce")
        return super()._reduce_axes(reduce_op, value, axis)

    def _reduce_to(
        self,
        reduce_op: ReduceOp,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        self._require_own(destinations)
        return self._reduce_nest(reduce_op, value, destinations)

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        self._require_own(destinations)
        return self._place_value(tensor, destinations)

    def _require_own(self, destinations: Any) -> None:
        """Check that values go to no other worker."""
        if not isinstance(destinations, str):
            return
        device, own = DeviceName.parse(destinations), self._membership
        if device.job == own.task_type and device.task not in (None, own.task_id):
            raise InvalidArgumentError(
                f"Cannot reduce to another worker: {destinations!r} is not a device of "
                f"{own.name}; reduce to a device of this worker, and share the result "
                "by a variable"
            )


class ParameterServerExtended(WorkerExtended):
    """The `extended` of a `ParameterServerStrategy` with a cluster.

    Args:
        container_strategy: The strategy.
        membership: Which task of the cluster this process is.
        store: The variables on the servers.
        devices: Full names of the devices of this worker's replicas.
        settings: What its user chose.
        elsewhere: On a worker server, whose functions make nothing; None where the program itself
            makes variables, modules and optimizers.

    Spec: PS1-5, PS1-6, PS1-12.
    """

    _hosting: RemoteHosting
    _cluster: TrainingCluster

    def __init__(
        self,
        container_strategy: Strategy,
        membership: Membership,
        store: RemoteStore,
        devices: Sequence[str],
        settings: Settings,
        elsewhere: MadeElsewhere | None = None,
    ) -> None:
        super().__init__(
            container_strategy, membership, devices, settings.synchronous, elsewhere is not None
        )
        self._store = store
        # Heartbeats tell of them.
        self._scalars = store.servers.steps.scalars
        self._names.warns = membership.creates and elsewhere is None
        self._variables = RemoteVariables(
            self._container_strategy, membership, store, settings, self._names
        )
        self._sharding = ShardedCreation(self._variables.partitioning, self._names)
        # Kept alive, since what was created on a server keeps its name there.
        self._shared: list[AggregatingVariable] = []
        self._hosting = hosting = RemoteHosting(
            self, [*map(torch_device, devices)], membership, self._variables, elsewhere
        )
        self._cluster = TrainingCluster(
            self._container_strategy,
            membership,
            store,
            hosting,
            BufferMeans(membership, hosting.adopter.buffers)
            if settings.buffers == "mean"
            else None,
        )

        keepers: list[list[Any]] = [
            self._variables.established,
            self._shared,
            self._sharding.created,
        ]
        self.forgetting = Forgetting(hosting, store, self._cluster, keepers)

    def forget(self, objects: Sequence[object]) -> list[str]:
        """Forget objects; see `ParameterServerStrategy.forget`."""
        if self._hosting.elsewhere is not None:
            raise self._hosting.elsewhere.refusal("a call of forget()")
        self._coordination.require_done("forget()")
        strategy = self._container_strategy()
        return self.forgetting.forget(strategy, objects, alone=self._coordination.active)

    def require_may_coordinate(self) -> None:
        """Refuse a first coordinator for what the program has done before it."""
        if not self._coordination.active:
            self._hosting.checkpoints.require_no_run()
            self._hosting.require_none_kept("a ClusterCoordinator")

    def coordinate(
        self,
        make_per_worker: Callable[..., Variable],
        end: Callable[[], None],
        is_done: Callable[[], bool],
    ) -> None:
        """Note that there is a coordinator from now on; see `Coordination.begin`."""
        self._hosting.checkpoints.is_coordinated = True
        self._coordination.begin(make_per_worker, end, is_done)

    def _close(self) -> None:
        try:
            self._cluster.flush()
        finally:
            self._hosting.part_from_workers()
            workers.leave_out(self._container_strategy())
            self._coordination.close()
            self._hosting.checkpoints.close()
            self._store.servers.close()

    def _one_moment(self) -> AbstractContextManager[None]:
        return nullcontext() if self._store.servers.snapshot else self._cluster.snapshot()

    def _no_checkpoints(self) -> UnimplementedError:
        return UnimplementedError(
            "ParameterServerStrategy does not gather here all that its servers hold; use the "
            "model.state_dict() and optimizer.state_dict() of each, write a model with all its "
            "tables by strategy.export(model, PATH), or save() all to a folder"
        )

    # Variables.

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The servers that this task sees and uses. Spec: PS1-6."""
        return tuple(f"/job:ps/task:{i}" for i in self._store.servers.called)

    def variable_placements(self) -> list[VariablePlacement]:
        """Ask the servers where each variable lives, those of optimizers included.

        Servers that device filters hide from this task are not asked.

        Returns:
            One entry for each variable, by server and in order of creation.

        Raises:
            UnavailableError: A server cannot be reached.
        """
        return self._variables.placements()

    def _create_in_scope(self, next_creator: NextCreator, **kwargs: Any) -> Any:
        create_one = partial(super()._create_in_scope, next_creator)
        return self._sharding.create(create_one, kwargs)

    def _create_variable(self, next_creator: NextCreator, **kwargs: Any) -> Variable:
        if self._hosting.elsewhere is not None:
            raise self._hosting.elsewhere.refusal(f"a variable, {kwargs['name']!r}")
        if kwargs.get("per_worker_variable"):
            return self._coordination.create_per_worker(next_creator, kwargs)
        self._require_one_writer(kwargs)
        # Device scopes around the strategy's do not count. Spec: PSV-2, PSV-3.
        with device_names.device(self._membership.name):
            variable = next_creator(**kwargs, make=self._create_remote)
        return self._shared_by_replicas(variable)

    def _shared_by_replicas(self, variable: Variable) -> Variable:
        """Return what the replicas of this process see of a variable."""
        if self._num_local_replicas == 1:
            return variable
        shared = AggregatingVariable(self._container_strategy(), variable)
        self._shared.append(shared)
        return shared

    def _create_remote(self, **kwargs: Any) -> RemoteVariable:
        variable = self._variables.placed(self._devices[0], kwargs)
        self._hosting.establish([variable])
        return variable

    def _require_one_writer(self, kwargs: dict[str, Any]) -> None:
        replicas = self._num_local_replicas * self._membership.num_training_tasks
        on_read = kwargs["synchronization"] is VariableSynchronization.ON_READ
        if on_read and replicas > 1:
            raise UnimplementedError(
                f"Variable {kwargs['name']!r} is to be synchronized ON_READ, but a "
                f"server keeps one copy of it for all {replicas} replicas; leave "
                "`synchronization` out and use assign_add(), which adds up what "
                "replicas count, use per_worker_variable=True, or have run() return "
                "what each replica counts, and reduce that"
            )

    def _validate_colocate_with(self, colocate_with_variable: Any) -> None:
        if isinstance(colocate_with_variable, ShardedVariable):
            raise InvalidArgumentError(
                "`colocate_vars_with` must be passed one of the `variables` of "
                f"{colocate_with_variable!r}, which is on several servers"
            )
        super()._validate_colocate_with(colocate_with_variable)

    # Several variables at once.

    def _values_of(self, variables: Sequence[Variable]) -> list[torch.Tensor]:
        if current_replica_id() is None:
            return self._variables.read(variables)
        return super()._values_of(variables)

    def _rows_of(
        self, variables: Sequence[Variable], rows: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        remotes = [self._variables.own(variable) for variable in variables]
        differentiable = torch.is_grad_enabled() and remotes[0].leaf.requires_grad
        if differentiable or current_replica_id() is not None:
            return super()._rows_of(variables, rows)
        return [*self._store.rows(remotes, rows)]

    def _write_each(self, write: Write, values: Mapping[Variable, Any]) -> None:
        if current_replica_id() is None:
            self._variables.write(write, values)
        else:
            super()._write_each(write, values)

    # Input.

    def _lookahead(self, data: Iterable[Any], rows: Callable[[Any], Any]) -> Iterable[Any]:
        is_in_function = self._hosting.elsewhere is not None
        if is_in_function and isinstance(data, Iterator) and not _knows_what_was_taken(data):
            raise InvalidArgumentError(
                f"{data!r:.100} is read by scheduled functions, and what lookahead has read of it "
                "ahead would be lost when the function ends; schedule functions with an iterator "
                "over strategy.experimental_distribute_dataset(...), or without lookahead"
            )
        fetcher = RowFetcher(self._hosting.lookahead, rows, self._local_results)
        return Lookahead(data, fetcher)

    def _input_left(self, here: bool, read: BatchRead | None) -> bool:
        if read is not None and self._membership.trains and self._membership.num_workers > 1:
            self._store.report_input(read, now=not here)
        return here

    # Runs.

    def _table_scope(self, name: str | None, meta_above: float) -> AbstractContextManager[object]:
        """Open the resources of a scope; parameters of more bytes are tables."""
        return self._hosting.watching(name, meta_above)

    def _run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        # Who wants no gradients evaluates.
        refresh = partial(self._hosting.before_replicas, training=torch.is_grad_enabled())
        return self._hosting.threads.run(refresh, partial(self._begin_run, fn, args, kwargs))

    def _begin_run(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        self._hosting.begin_run()
        return self._call_for_each_replica(fn, args, kwargs)

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        if self._coordination.active:
            self._coordination.warn_off_workers("run")
        call = partial(self._run_replicas, self._devices, fn, args, kwargs)
        return self._hosting.run(call)

    # Functions run where variables are.

    def _update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        remote = self._variables.own(var)
        call = partial(run_update, self._store, remote.place.server, fn, [remote])
        return self._run_update(remote.device_name, call, args, kwargs, group)

    def _update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        remote = self._variables.own(colocate_with)
        call = partial(run_update, self._store, remote.place.server, fn, ())
        return self._run_update(remote.device_name, call, args, kwargs, group)

    def non_slot_devices(self, var_list: Sequence[Variable | ShardedVariable]) -> Variable:
        """Return the variable, or shard, on whose server non-slot variables go.

        Spec: EXT-7.
        """
        lists = (v.variables if isinstance(v, ShardedVariable) else [v] for v in var_list)
        return smallest_by_name([variable for one in lists for variable in one])

    def _require_own(self, destinations: Any) -> None:
        super()._require_own(destinations)
        if isinstance(destinations, str):
            device = DeviceName.parse(destinations)
            if device.job == "ps" and device.task is not None:
                self._store.servers.require_visible(device.task)


def _knows_what_was_taken(data: Iterator[Any]) -> bool:
    """Return whether an iterator gives what was read ahead of it to whoever comes next."""
    return isinstance(data, DistributedIterator)
