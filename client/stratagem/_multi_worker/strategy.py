"""Replicas with full copies of all variables, on the devices of several workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import torch
from torch.distributed.constants import default_pg_timeout

from stratagem._core.device_names import DeviceName, list_logical_devices
from stratagem._core.options import CommunicationOptions
from stratagem._core.reduction import default_cross_device_ops
from stratagem._core.variables import Variable
from stratagem._hosting.hosting import MadeElsewhere
from stratagem._input.sharding import InputWorker
from stratagem._local.hosting import Unite
from stratagem._local.mirrored import MirroredExtended, ReplicaGroup
from stratagem._multi_worker.group import WorkerGroup
from stratagem._multi_worker.hosting import StepsTogether, WorkersHosting, follow_chief
from stratagem._multi_worker.place import WorkerPlace, place_by_torchrun, place_in_cluster
from stratagem._multi_worker.reduction import AcrossWorkers
from stratagem._strategies.extended import StrategyExtended
from stratagem._strategies.strategy import Strategy
from stratagem.cluster_resolver import ClusterResolver
from stratagem.cluster_resolver._resolvers import given_or_default
from stratagem_proto.errors import InvalidTypeError
from stratagem_proto.input_order import BatchRead, different_inputs
from stratagem_proto.v1.cluster_pb2 import ConfigProto


class MultiWorkerMirroredStrategy(Strategy):
    """Synchronous training on the devices of several workers, without servers.

    Every worker runs the same program. Each variable, and each parameter of a module built in
    scope, has a copy on every device of every worker and starts with the chief's value. Gradients
    are reduced over all replicas of all workers, and every copy takes the same step. A worker uses
    all its GPUs, or without any all its logical CPUs; all workers have equally many.

    The workers connect when the first of them needs the others: to create variables, to reduce, to
    step. They use process groups of torch that are this strategy's own: NCCL between GPUs, gloo
    otherwise. These know no secret and encrypt nothing, so that workers on several machines need
    `STRATAGEM_INSECURE=true` in their environment. What involves all workers has to be called by
    all of them, in the same order.

    Args:
        cluster_resolver: Describes the cluster, whose chief and workers train, and says which task
            this process is. By default that is read from `TF_CONFIG`, or else from the environment
            that torchrun sets. Without a cluster this process trains alone.
        communication_options: `timeout_seconds` is how long a worker waits for the others, by
            default half an hour, as torch does; `bytes_per_pack` bounds the size of messages.

    Raises:
        InvalidArgumentError: The cluster is none for training, or this process is no task of it
            that trains.
        InvalidTypeError: An argument is of another type.
        FailedPreconditionError: The workers are on several machines, and `STRATAGEM_INSECURE` does
            not say that these may speak unencrypted.

    Spec: STR-4, STR-12, LOC-8, MWU-1 to MWU-7.
    """

    __module__ = "stratagem"

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
    ) -> None:
        options = communication_options or CommunicationOptions()
        if not isinstance(options, CommunicationOptions):
            raise InvalidTypeError(
                f"communication_options must be CommunicationOptions, not {options!r}"
            )
        resolver = given_or_default(cluster_resolver)
        place = _place(resolver, cluster_resolver is None)
        devices = _devices_of(place)
        facts = [f"{len(devices)} replicas on {DeviceName.parse(devices[0]).kind}"]
        timeout = options.timeout_seconds or default_pg_timeout.total_seconds()
        group = WorkerGroup(place, timeout, facts)
        replicas = WorkersReplicas(devices, group, options)
        super().__init__(MirroredExtended(self, replicas, resolver))


def _place(resolver: ClusterResolver, by_environment: bool) -> WorkerPlace:
    if by_environment and not resolver.cluster_spec():
        return place_by_torchrun() or place_in_cluster(resolver)
    return place_in_cluster(resolver)


def _devices_of(place: WorkerPlace) -> Sequence[str]:
    found = list_logical_devices("GPU")
    if found and place.local_rank is not None:
        found = (found[place.local_rank],)
    local = map(DeviceName.parse, found or list_logical_devices("CPU"))
    return [f"{place.name}/device:{each.kind}:{each.index}" for each in local]


class WorkersReplicas(ReplicaGroup):
    """Replicas of workers that train together.

    On a worker server, `elsewhere` refuses to make what only the program makes; in the program it
    is None.
    """

    across: AcrossWorkers
    between_graph = True

    def __init__(
        self,
        devices: Sequence[str],
        group: WorkerGroup,
        options: CommunicationOptions,
        elsewhere: MadeElsewhere | None = None,
    ) -> None:
        super().__init__(devices, default_cross_device_ops(devices))
        self.across = AcrossWorkers(group, len(devices), options)
        self.size = group.size
        self.rank = group.place.rank
        self.default_device = f"{group.place.name}/device:CPU:0"
        self.group = group
        self._elsewhere = elsewhere
        self._loaders, self._datasets = count(), count()

    def host(self, extended: StrategyExtended, unite: Unite) -> WorkersHosting:
        return WorkersHosting(
            extended,
            self.devices,
            self.cross_device_ops,
            unite,
            StepsTogether(self.group, self.across),
            self._elsewhere,
        )

    def configure(self, config: ConfigProto) -> None:
        config.isolate_session_state = False
        if self.size > 1:
            del config.device_filters[:]
            config.device_filters.append(self.group.place.name)
            config.experimental.collective_group_leader = self.group.place.tasks[0]

    def start_alike(self, variable: Variable) -> None:
        shape = list(variable.shape)
        form = [variable.name, str(variable.dtype), shape, variable.trainable]
        modes = [str(variable.synchronization), str(variable.aggregation)]
        self.group.agree("A variable", form + modes)
        follow_chief(self.group, [variable.value()])

    def note_write(self, variable: Variable) -> None:
        self.group.note_write(variable.name, variable.values[0].value())

    def share_order(self, worker: InputWorker) -> InputWorker:
        seeds = self.group.exchange("A dataset", torch.initial_seed())
        # A loader that is made anew for each epoch is to have another order in each.
        return replace(
            worker,
            seed=lambda: (seeds[0] + next(self._loaders)) % 2**63,
            number=next(self._datasets),
        )

    def input_left(self, here: bool, read: BatchRead | None) -> bool:
        heard = self.group.exchange("The next input", [here, read])
        first, tasks = heard[0][1], self.group.place.tasks
        for rank, (_, other) in enumerate(heard):
            if first and other and first != other:
                known, found = BatchRead(*first), BatchRead(*other)
                raise different_inputs(found, tasks[rank], known.digest, tasks[0])
        return any(left for left, _ in heard)
