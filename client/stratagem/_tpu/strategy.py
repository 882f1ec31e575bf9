"""A replica with a full copy of all variables on each core of accelerator hosts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stratagem._local.mirrored import CopiesExtended
from stratagem._tpu.cores import Cores, CoresExtended, CoresStrategy, LocalCores, Topology
from stratagem.cluster_resolver import ClusterResolver, TPUClusterResolver
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError


class TPUStrategy(CoresStrategy):
    """Synchronous training on the cores of accelerator hosts.

    Cores are GPUs, or where there are none logical CPUs. Each variable, and each parameter of a
    module built in scope, has a copy on every core.

    Args:
        tpu_cluster_resolver: Describes the hosts; where it has none, and without a resolver, this
            process is the only one.
        steps_per_run: How many steps a loop is to have, for those who write loops.
        num_cores: How many cores to use, the first ones; by default all.
        trust_workers: Whether what functions on hosts return and raise is pickled. Without it they
            return tensors, arrays, numbers, strings, bytes, None, and tuples, lists, dicts and sets
            of these, and other exceptions than those of Python and of Stratagem become
            `WorkerFunctionError`. With it, whoever takes over a host can run code in this program.

    Raises:
        InvalidArgumentError: There are not as many cores, or `steps_per_run` is less than 1.
        InvalidTypeError: An argument is of another type.

    Spec: TPU-1 to TPU-25.
    """

    __module__ = "stratagem"

    def __init__(
        self,
        tpu_cluster_resolver: ClusterResolver | None = None,
        steps_per_run: int = 1,
        num_cores: int | None = None,
        *,
        trust_workers: bool = False,
    ) -> None:
        if tpu_cluster_resolver is None:
            tpu_cluster_resolver = TPUClusterResolver("local")
        if not isinstance(tpu_cluster_resolver, ClusterResolver):
            raise InvalidTypeError(
                f"tpu_cluster_resolver must be a ClusterResolver, not {tpu_cluster_resolver!r}; "
                "TPUClusterResolver('local') stands for this process"
            )
        if steps_per_run < 1:
            raise InvalidArgumentError(
                f"steps_per_run is {steps_per_run}; a loop has at least 1 step"
            )
        super().__init__(
            CoresExtended(
                self,
                _cores_of(tpu_cluster_resolver, num_cores, trust_workers),
                tpu_cluster_resolver,
                steps_per_run,
            )
        )

    def _class_on_hosts(self) -> type[CoresStrategy]:
        return TPUStrategy


def _cores_of(
    resolver: ClusterResolver, num_cores: int | None, trust_workers: bool
) -> Callable[[CopiesExtended], Cores]:
    if not resolver.cluster_spec():
        return partial(LocalCores, topology=Topology.of_this_process(num_cores))
    # Late: it needs all that sends functions to other processes.
    from stratagem._shipping.outcome_forms import form_of_hosts
    from stratagem._tpu.remote import RemoteCores

    is_tpu = isinstance(resolver, TPUClusterResolver)
    job = (resolver.task_type if is_tpu else None) or "worker"
    outcomes = form_of_hosts(trust_workers)
    return partial(RemoteCores, resolver=resolver, job=job, num_cores=num_cores, outcomes=outcomes)
