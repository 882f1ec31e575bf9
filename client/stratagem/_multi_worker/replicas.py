"""Replicas on the devices of several workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from stratagem._core.options import CommunicationOptions
from stratagem._core.values.cross_device_ops import default_cross_device_ops
from stratagem._core.variables.variable import Variable
from stratagem._hosting.elsewhere import MadeElsewhere
from stratagem._input.sharding import InputWorker
from stratagem._local.copies import Unite
from stratagem._local.replica_group import ReplicaGroup
from stratagem._multi_worker.gradients import StepsTogether
from stratagem._multi_worker.group import WorkerGroup
from stratagem._multi_worker.hosting import WorkersHosting, follow_chief
from stratagem._multi_worker.reduction import AcrossWorkers
from stratagem._strategies.extended import StrategyExtended
from stratagem_proto.v1.cluster_pb2 import ConfigProto


class WorkersReplicas(ReplicaGroup):
    """Replicas of workers that train together.

    Args:
        devices: Full names of the devices of this worker's replicas.
        group: The workers.
        options: How the workers communicate.
        elsewhere: On a worker server, whose functions make nothing; None where the program itself
            builds modules and optimizers.
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

    def share_seed(self, worker: InputWorker) -> InputWorker:
        seeds = self.group.exchange("A dataset", torch.initial_seed())
        return replace(worker, seed=lambda: seeds[0])

    def input_left(self, here: bool) -> bool:
        return any(self.group.exchange("The next input", here))
