"""Synchronous training by workers of one job, without parameter servers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.distributed.constants import default_pg_timeout

from stratagem._core.device_names import DeviceName, list_logical_devices
from stratagem._core.distributed_values import select_replica
from stratagem._core.names import Origin, exchanged
from stratagem._core.options import CommunicationOptions, ReduceOp
from stratagem._core.reduction import CrossDeviceOps, default_cross_device_ops
from stratagem._core.tensors import IndexedSlices
from stratagem._core.variables import Variable
from stratagem._gradients import GroupStep, OptimizerStep, VariableGradients
from stratagem._hosting.adoption import Adoption
from stratagem._hosting.hosted_parameter import HostedParameter
from stratagem._hosting.hosting import MadeElsewhere, Slots
from stratagem._input.sharding import InputWorker
from stratagem._local.hosting import CopiesHosting, Unite
from stratagem._local.mirrored import MirroredExtended, ReplicaGroup
from stratagem._multi_worker.group import AcrossWorkers, Reduced, WorkerGroup
from stratagem._multi_worker.meeting import WorkerPlace, place_by_torchrun, place_in_cluster
from stratagem._strategies.extended import StrategyExtended
from stratagem._strategies.strategy import Strategy
from stratagem.cluster_resolver import ClusterResolver
from stratagem.cluster_resolver._resolvers import given_or_default
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError, VariableNotFoundError
from stratagem_proto.input_order import BatchRead, different_inputs
from stratagem_proto.v1.cluster_pb2 import ConfigProto


class StepsTogether:
    """Makes all workers take the same steps.

    If only some workers have a gradient for a variable, for instance because the others had no
    data, these take part with zeros.
    """

    def __init__(self, group: WorkerGroup, across: AcrossWorkers) -> None:
        self.group = group
        self._across = across

    def joined(self, step: OptimizerStep, find: Callable[[str], Variable]) -> OptimizerStep:
        """Return the step of all workers.

        Its variables are those for which any worker has a gradient, and its replicas those of all
        workers that took part.

        Raises:
            InvalidArgumentError: The workers' optimizers or hyperparameters differ, or what they
                have written by hand.
        """
        same: list[Any] = [step.optimizer, step.class_name, str(step.reduce_op)]
        same += [pair for group in step.groups for pair in _hyperparameters(group)]
        own = {"replicas": step.replicas, "groups": list(map(_forms, step.groups))}
        heard = self.group.agree("A step of an optimizer", same, own)
        groups = [
            _with_all(group, [each["groups"][number] for each in heard], find)
            for number, group in enumerate(step.groups)
        ]
        replicas = sum(each["replicas"] for each in heard)
        return step._replace(groups=tuple(groups), replicas=replicas)

    def summed(self, totals: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Add up over workers the totals of each, one for each variable of `joined`."""
        # Sparse totals go apart: workers may have different numbers of rows.
        rows = self._across.summed(
            [IndexedSlices.from_sparse(total) for total in totals if total.is_sparse]
        )
        dense = self.group.sums([total for total in totals if not total.is_sparse])
        rest = iter(rows), iter(dense)
        return [_sparse(next(rest[0])) if total.is_sparse else next(rest[1]) for total in totals]


def mean(step: OptimizerStep, total: torch.Tensor) -> torch.Tensor:
    """Return the sum over replicas, divided by their number if the step wants that."""
    return total / step.replicas if step.reduce_op is ReduceOp.MEAN else total


def _with_all(
    group: GroupStep, by_rank: Sequence[Any], find: Callable[[str], Variable]
) -> GroupStep:
    if all(forms == by_rank[0] for forms in by_rank):
        return group
    own = {update.variable.name: update for update in group.updates}
    updates = [
        own[name] if name in own else _zeros(find(name), sparse)
        for name, sparse in _union(by_rank).items()
    ]
    return group.with_updates(updates)


def _zeros(variable: Variable, sparse: bool) -> VariableGradients:
    zeros = torch.zeros_like(variable.values[0].value().detach())
    if sparse:
        nowhere = torch.empty(0, dtype=torch.int64, device=zeros.device)
        zeros = _sparse(IndexedSlices(zeros[:0], nowhere, zeros.shape))
    return VariableGradients(variable, (zeros,))


def _hyperparameters(group: GroupStep) -> list[str]:
    pairs = group.hyperparameters.items()
    return [f"{key}={_shown(value)}" for key, value in pairs]


def _shown(value: object) -> str:
    return repr(value.tolist() if isinstance(value, torch.Tensor) else value)


def _forms(group: GroupStep) -> list[list[Any]]:
    """Return name and sparsity of each variable that has a gradient."""
    return [[update.variable.name, update.gradients[0].is_sparse] for update in group.updates]


def _union(by_rank: Sequence[Sequence[Sequence[Any]]]) -> Mapping[str, bool]:
    found: dict[str, bool] = {}
    for forms in by_rank:
        for name, sparse in forms:
            if found.setdefault(name, sparse) is not sparse:
                raise InvalidArgumentError(
                    f"The gradient of {name!r} is sparse on some workers and dense on "
                    "others; build the same modules on all workers",
                    variable=name,
                )
    return found


def _sparse(rows: Reduced) -> torch.Tensor:
    assert isinstance(rows, IndexedSlices)
    assert rows.dense_shape is not None
    tensor = torch.sparse_coo_tensor(
        rows.indices.unsqueeze(0), rows.values, rows.dense_shape, check_invariants=False
    )
    return tensor.coalesce()


class WorkersHosting(CopiesHosting):
    """Keeps copies on the devices of all workers, which start as the chief's."""

    def __init__(
        self,
        extended: StrategyExtended,
        names: Sequence[str],
        cross_device_ops: CrossDeviceOps,
        unite: Unite,
        steps: StepsTogether,
        elsewhere: MadeElsewhere | None = None,
    ) -> None:
        super().__init__(extended, names, cross_device_ops, unite, elsewhere)
        self._group = steps.group
        self._steps = steps
        extended._names.warns = steps.group.size > 1 and steps.group.place.is_chief

    # Modules start as the chief's.

    def host(self, adoptions: Sequence[Adoption]) -> None:
        own = {adoption.name: self._extended._names.origin(adoption.name) for adoption in adoptions}
        forms = [_form(adoption) for adoption in adoptions]
        heard = self._group.agree("A parameter", forms, [*own.values()])
        self._require_told_apart([*own], heard)
        follow_chief(self._group, [adoption.parameter for adoption in adoptions])
        super().host(adoptions)

    def _require_told_apart(self, names: Sequence[str], by_rank: Sequence[Any]) -> None:
        """Check that no worker builds in another order, as far as what it calls things tells."""
        chiefs, *others = (
            {name: Origin(*one) for name, one in zip(names, each, strict=True) if one}
            for each in by_rank
        )
        for rank, theirs in enumerate(others, 1):
            confusion = exchanged(theirs, chiefs)
            if confusion:
                place = self._group.place
                here, there = (f"{place.tasks[at]}'s program" for at in (rank, 0))
                raise InvalidArgumentError(
                    confusion.sentence(here, there), variable=confusion.name, task=place.name
                )

    def host_buffers(self, roots: Sequence[nn.Module]) -> None:
        buffers = [buffer for root in roots for buffer in root.buffers()]
        forms = [[str(each.dtype), list(each.shape)] for each in buffers]
        if roots:
            self._group.agree("A buffer of modules", forms)
            follow_chief(self._group, buffers)
        super().host_buffers(roots)

    # Steps.

    @property
    def is_shared(self) -> bool:
        return self._group.size > 1

    def before_replicas(self) -> None:
        if not all(hosted.owners() for hosted in self.parameters.written_locally()):
            # Workers collect what they have dropped at different times.
            gc.collect()
        for hosted in self.parameters.written_locally():
            self._group.note_write(hosted.name, hosted.parameter)
        super().before_replicas()

    def set_slots(self, optimizer: str, slots: Mapping[Variable, Slots]) -> None:
        super().set_slots(optimizer, slots)
        for variable, state in slots.items():
            for key, value in sorted(state.items()):
                self._group.note_write(f"{optimizer} {variable.name} {key}", value)

    def accept_writes(self, hosted: HostedParameter) -> None:
        super().accept_writes(hosted)
        self._group.note_write(hosted.name, hosted.parameter)

    def joined(self, step: OptimizerStep) -> OptimizerStep:
        return self._steps.joined(step, self._find)

    def reduced_gradients(self, step: OptimizerStep) -> list[Any]:
        local = super().reduced_gradients(step._replace(reduce_op=ReduceOp.SUM))
        totals = [select_replica(0, gradient) for gradient in local]
        return [mean(step, total) for total in self._steps.summed(totals)]

    def _find(self, name: str) -> Variable:
        for variable in self.variables():
            if variable.name == name:
                return variable
        raise VariableNotFoundError(
            f"{self._group.place.name} has no variable {name!r}, for which another "
            "worker has a gradient; build the same modules on all workers",
            variable=name,
        )


def follow_chief(group: WorkerGroup, tensors: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for mine, chief in zip(tensors, group.spread(tensors), strict=True):
            mine.copy_(chief)


def _form(adoption: Adoption) -> list[Any]:
    """Return what of a parameter has to be equal on all workers."""
    parameter = adoption.parameter
    kind = [str(parameter.dtype), list(parameter.shape), parameter.requires_grad]
    return [adoption.name, *kind, adoption.module_path]


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
