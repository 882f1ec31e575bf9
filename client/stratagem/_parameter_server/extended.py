"""What a strategy with parameter servers is made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stratagem._checkpoints.deferred import Restoration
from stratagem._cluster.membership import Membership
from stratagem._core import device_names
from stratagem._core.contexts.scope import entered
from stratagem._core.device_names import DeviceName, torch_device
from stratagem._core.distributed_variables.aggregating import AggregatingVariable
from stratagem._core.distributed_variables.updating import smallest_by_name
from stratagem._core.enums import VariableSynchronization
from stratagem._core.variables.creators import NextCreator
from stratagem._core.variables.initial_values import initial_tensor
from stratagem._core.variables.traits import VariableTraits
from stratagem._core.variables.variable import Variable
from stratagem._hosting.modules.adoption import Adoption
from stratagem._parameter_server.buffer_means import BufferMeans
from stratagem._parameter_server.checkpoints.checkpoints import ClusterCheckpoints
from stratagem._parameter_server.checkpoints.snapshot import snapshot_of
from stratagem._parameter_server.hosting import updates as _remote_updates
from stratagem._parameter_server.hosting.creation import RemoteCreation
from stratagem._parameter_server.hosting.local_writes import (
    refuse_writes_in_replicas,
)
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.loaded_values import LoadedValues
from stratagem._parameter_server.remote_optimizers import RemoteOptimizers
from stratagem._parameter_server.settings import Settings
from stratagem._parameter_server.tables.variable import require_whole_state
from stratagem._parameter_server.variables.placement import (
    placement_named,
    server_named,
)
from stratagem._parameter_server.variables.sharded_variable import ShardedVariable
from stratagem._parameter_server.variables.split_variable import (
    parts_of,
)
from stratagem._parameter_server.variables.variable import Owner, RemoteVariable
from stratagem._parameter_server.variables.variable_placement import (
    VariablePlacement,
    placements,
)
from stratagem._ps_client.requests.consistency import barrier
from stratagem._ps_client.traffic import Traffic
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy


class ParameterServerExtended(RemoteOptimizers):
    """The `extended` of a `ParameterServerStrategy` with a cluster.

    Args:
        container_strategy: The strategy.
        membership: Which task of the cluster this process is.
        store: The variables on the servers.
        devices: Full names of the devices of this worker's replicas.
        settings: What its user chose.

    Spec: PS1-5, PS1-6, PS1-12.
    """

    def __init__(
        self,
        container_strategy: Strategy,
        membership: Membership,
        store: RemoteStore,
        devices: Sequence[str],
        settings: Settings,
    ) -> None:
        super().__init__(container_strategy, membership, devices, settings)
        self._store = store
        self._loaded: LoadedValues = LoadedValues(store, self._parameters, membership)
        placement = placement_named(settings.placement)(store.servers.used)
        self._creation = RemoteCreation(store, membership, placement)
        # Kept alive, since what was created on a server keeps its name there.
        self._variables: list[RemoteVariable] = []
        self._shared: list[AggregatingVariable] = []
        self._buffer_means = (
            BufferMeans(membership, self._adopter.buffers)
            if settings.buffers == "mean"
            else None
        )
        self._checkpoints = ClusterCheckpoints(
            membership, store, self._variables, self._adopter.buffers
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
        listing = self._store.listing()
        return placements(
            {
                f"/job:ps/task:{server}": [info.spec for info in infos]
                for server, infos in listing.items()
            }
        )

    def _create_variable(self, next_creator: NextCreator, **kwargs: Any) -> Variable:
        if kwargs.get("per_worker_variable"):
            return self._create_per_worker(next_creator, kwargs)
        self._require_one_writer(kwargs)
        # Device scopes around the strategy's do not count. Spec: PSV-2, PSV-3.
        with device_names.device(self._membership.name):
            variable = next_creator(**kwargs, make=self._create_remote)
        if self._num_local_replicas == 1:
            return variable
        shared = AggregatingVariable(self._container_strategy(), variable)
        self._shared.append(shared)
        return shared

    def _require_one_writer(self, kwargs: dict[str, Any]) -> None:
        replicas = self._num_local_replicas * self._membership.num_trainers
        on_read = kwargs["synchronization"] is VariableSynchronization.ON_READ
        if on_read and replicas > 1:
            raise UnimplementedError(
                f"Variable {kwargs['name']!r} is to be synchronized ON_READ, but a "
                f"server keeps one copy of it for all {replicas} replicas; leave "
                "`synchronization` out and use assign_add(), which adds up what "
                "replicas count, use per_worker_variable=True, or have run() return "
                "what each replica counts, and reduce that"
            )

    def _create_remote(self, **kwargs: Any) -> RemoteVariable:
        traits = VariableTraits(
            *(kwargs[key] for key in VariableTraits.__dataclass_fields__)
        )
        initial = initial_tensor(
            kwargs["initial_value"], kwargs.get("dtype"), kwargs.get("shape")
        )
        value = initial.detach().to(torch_device(self._devices[0]), copy=True)
        differentiable = value.is_floating_point() or value.is_complex()
        value.requires_grad_(traits.trainable and differentiable)
        colocated = self._required_remote(kwargs.get("colocate_with"))
        owner = Owner(shard=kwargs.get("shard"))
        moved_to = server_named(device_names.current())
        variable = self._creation.placed(traits, value, owner, colocated, moved_to)
        self._establish([variable])
        return variable

    def _establish(self, variables: Sequence[RemoteVariable]) -> None:
        self._creation.establish(variables)
        self._variables += variables
        self._checkpoints.created(variables)

    def _host(self, adoptions: Sequence[Adoption]) -> None:
        variables = [self._placed_parameter(self._creation, one) for one in adoptions]
        self._establish([part for one in variables for part in parts_of(one)])
        for variable, adoption in zip(variables, adoptions, strict=True):
            variable._join(self._container_strategy())
            hosted = self._shown(variable, adoption)
            for part in parts_of(variable):
                part.show_in(hosted)

    def _required_remote(self, variable: Any) -> RemoteVariable | None:
        return None if variable is None else self._own(variable)

    # Life.

    def _barrier(self, name: str, passed: int, timeout: float | None) -> None:
        if self._membership.task_type == "evaluator":
            return  # a cluster of its own
        # After all have met, nobody has to wait for what the chief has set before.
        self._loaded.carry()
        with self._averaging_buffers():
            self._wait_for_others(name, passed, timeout)
        self._loaded.settle(0.0)

    @contextmanager
    def _averaging_buffers(self) -> Iterator[None]:
        if self._buffer_means is None:
            yield
            return
        with entered(self._container_strategy()):
            self._buffer_means.offer()
            yield
            self._buffer_means.accept()

    def _wait_for_others(self, name: str, passed: int, timeout: float | None) -> None:
        wait = self._store.peer_seconds if timeout is None else timeout
        request = barrier(name, passed, self._membership.num_workers, wait)
        # Those who come later may have to wait for what this worker has finished.
        with self._store.reporting():
            # One server is enough to meet at.
            self._store.ask_first(request)

    def _traffic(self) -> Traffic:
        return self._store.servers.traffic

    def _host_buffers(self, roots: Sequence[nn.Module]) -> None:
        self._checkpoints.buffers_hosted()
        super()._host_buffers(roots)

    def _register_for_checkpointing(self, name: str, stateful: Any) -> None:
        self._checkpoints.states.register(name, stateful)

    def _save(
        self, root: str | os.PathLike[str], keep: int, extra: Mapping[str, Any]
    ) -> Future[None]:
        """Save all servers at one moment; see `ParameterServerStrategy.save`."""
        self._before_replicas()
        return self._checkpoints.save(root, keep, extra)

    def _restore(self, path: str | os.PathLike[str], strict: bool) -> Restoration:
        """Restore all servers; see `ParameterServerStrategy.restore`."""
        self._before_replicas()
        restoration = self._checkpoints.restore(path, strict)
        # The parameters of modules are to have the values at once.
        self._before_replicas()
        return restoration

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Read all as of one moment; see `ParameterServerStrategy.snapshot`."""
        strategy = self._container_strategy()
        with entered(strategy):
            self._before_replicas()
        with snapshot_of(self._store):
            with entered(strategy):
                self._before_replicas()
            yield

    def _no_checkpoints(self) -> UnimplementedError:
        return UnimplementedError(
            "ParameterServerStrategy does not gather here all that its servers hold; "
            "use model.state_dict() and optimizer.state_dict(), or save() all to a "
            "folder, of which `stratagem checkpoint export` makes a state_dict"
        )

    def _flush(self) -> None:
        self._store.pushing.flush()

    def _close(self) -> None:
        try:
            self._flush()
        finally:
            super()._close()
            self._checkpoints.close()
            self._store.servers.close()

    # Runs.

    def _before_replicas(self, training: bool = False) -> None:
        super()._before_replicas()
        self._loaded.settle()
        self._store.refresh(self._variables, training)

    def _before_lone_step(self) -> None:
        super()._before_replicas()
        self._loaded.settle()
        self._store.pushing.refresh(None)

    def _run(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        call = partial(self._call_for_each_replica, fn, args, kwargs)
        return self._trainers.run(self._before_run, call)

    def _before_run(self) -> None:
        # Who wants no gradients evaluates.
        self._before_replicas(training=torch.is_grad_enabled())

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        # A checkpoint has all that this sends, or nothing of it.
        self._stepped.clear()
        with self._store.servers.steps.taking():
            result = super()._call_for_each_replica(fn, args, kwargs)
            self._checkpoints.states.ran()
        refuse_writes_in_replicas(self._store, self._parameters)
        return result

    def _slots(
        self, optimizer: str, variables: Sequence[Variable]
    ) -> Sequence[Mapping[str, torch.Tensor]]:
        # What was loaded here last is to be seen, or refused.
        self._loaded.settle()
        return super()._slots(optimizer, variables)

    def _set_slots(
        self, optimizer: str, slots: Mapping[Variable, Mapping[str, torch.Tensor]]
    ) -> None:
        if self._membership.creates:
            super()._set_slots(optimizer, slots)
            self._loaded.tell_slots(optimizer, slots)
        else:
            require_whole_state(slots)
            self._loaded.hold_slots(optimizer, slots, super()._slots)

    # Functions run where variables are.

    def _update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        remote = self._own(var)
        call = partial(
            _remote_updates.run, self._store, remote.place.server, fn, [remote]
        )
        return self._run_update(remote.device_name, call, args, kwargs, group)

    def _update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        remote = self._own(colocate_with)
        call = partial(_remote_updates.run, self._store, remote.place.server, fn, ())
        return self._run_update(remote.device_name, call, args, kwargs, group)

    def _validate_colocate_with(self, colocate_with_variable: Any) -> None:
        if isinstance(colocate_with_variable, ShardedVariable):
            raise InvalidArgumentError(
                "`colocate_vars_with` must be passed one of the `variables` of "
                f"{colocate_with_variable!r}, which is on several servers"
            )
        super()._validate_colocate_with(colocate_with_variable)

    def non_slot_devices(
        self, var_list: Sequence[Variable | ShardedVariable]
    ) -> Variable:
        """Return the variable, or shard, on whose server non-slot variables go.

        Spec: EXT-7.
        """
        lists = (
            v.variables if isinstance(v, ShardedVariable) else [v] for v in var_list
        )
        return smallest_by_name([variable for one in lists for variable in one])

    def _require_own(self, destinations: Any) -> None:
        super()._require_own(destinations)
        if isinstance(destinations, str):
            device = DeviceName.parse(destinations)
            if device.job == "ps" and device.task is not None:
                self._store.servers.require_visible(device.task)
