"""The replicas in sync, as a process that runs some of them sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratagem._core.distributed_variables.sync_on_read import SyncOnReadVariable
from stratagem._core.values.cross_device_ops import CrossDeviceOps
from stratagem._core.variables.variable import Variable
from stratagem._local.across import AcrossDevices, AcrossReplicas
from stratagem._local.copies import CopiesHosting, Unite
from stratagem._strategies.extended import StrategyExtended

if TYPE_CHECKING:
    from stratagem._input.sharding import InputWorker
    from stratagem_proto.v1.cluster_pb2 import ConfigProto


class ReplicaGroup(ABC):
    """The replicas in sync, of which each process runs equally many.

    Args:
        devices: Full names of the devices of this process's replicas.
        cross_device_ops: Moves values between these.

    Attributes:
        across: Brings values of all replicas together.
        size: The number of processes.
        rank: The number of this process among them; the chief's is 0.
        default_device: The current device inside of the strategy's scope, or None.
        between_graph: Whether each process runs the user's program.
        sync_on_read: The class of variables of which each replica writes its own copy.
    """

    across: AcrossReplicas
    size: int = 1
    rank: int = 0
    default_device: str | None = None
    between_graph: bool = False
    sync_on_read: type[SyncOnReadVariable] = SyncOnReadVariable

    def __init__(self, devices: Sequence[str], cross_device_ops: CrossDeviceOps) -> None:
        self.devices = tuple(devices)
        self.cross_device_ops = cross_device_ops

    @abstractmethod
    def host(self, extended: StrategyExtended, unite: Unite) -> CopiesHosting:
        """Return what hosts modules for the strategy of these replicas."""

    @abstractmethod
    def configure(self, config: ConfigProto) -> None:
        """Change a session's configuration, in place, to what is needed."""

    @abstractmethod
    def start_alike(self, variable: Variable) -> None:
        """Give a variable that was just created the value that the chief has."""

    @abstractmethod
    def share_seed(self, worker: InputWorker) -> InputWorker:
        """Return a reader of input that shuffles as all processes do."""

    @abstractmethod
    def input_left(self, here: bool) -> bool:
        """Return whether any process has input for one more step."""


class LocalReplicas(ReplicaGroup):
    """Replicas that are all in this process."""

    def __init__(self, devices: Sequence[str], cross_device_ops: CrossDeviceOps) -> None:
        super().__init__(devices, cross_device_ops)
        self.across = AcrossDevices(cross_device_ops, self.count)

    def count(self) -> int:
        """Return the number of replicas."""
        return len(self.devices)

    def host(self, extended: StrategyExtended, unite: Unite) -> CopiesHosting:
        return CopiesHosting(extended, self.devices, self.cross_device_ops, unite)

    def configure(self, config: ConfigProto) -> None:
        config.isolate_session_state = True

    def start_alike(self, variable: Variable) -> None:
        """Leave the variable as it is: there is no other process."""

    def share_seed(self, worker: InputWorker) -> InputWorker:
        return worker

    def input_left(self, here: bool) -> bool:
        return here
