"""Replicas with full copies of all variables on the devices of several workers."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.constants import default_pg_timeout

from stratagem._core.device_names import DeviceName, list_logical_devices
from stratagem._core.options import CommunicationOptions
from stratagem._local.mirrored import MirroredExtended
from stratagem._multi_worker.group import WorkerGroup
from stratagem._multi_worker.place import WorkerPlace, place_by_torchrun, place_in_cluster
from stratagem._multi_worker.replicas import WorkersReplicas
from stratagem._strategies.strategy import Strategy
from stratagem.cluster_resolver import ClusterResolver
from stratagem.cluster_resolver._tf_config import given_or_default
from stratagem_proto.errors import InvalidTypeError


class MultiWorkerMirroredStrategy(Strategy):
    """Synchronous training on the devices of several workers, without servers.

    Every worker runs the same program. Each variable, and each parameter of a module built in
    scope, has a copy on every device of every worker and starts with the chief's value. Gradients
    are reduced over all replicas of all workers, and every copy takes the same step. A worker uses
    all its GPUs, or without any all its logical CPUs; all workers have equally many.

    The workers connect when the first of them needs the others: to create variables, to reduce, to
    step. They use process groups of torch that are this strategy's own: NCCL between GPUs, gloo
    otherwise. What involves all workers has to be called by all of them, in the same order.

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
