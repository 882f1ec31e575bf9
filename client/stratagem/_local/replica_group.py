"""The replicas in sync, as a process that runs some of them sees them, and their values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core.distributed_values import Mirrored, PerReplica, at_destinations, components
from stratagem._core.distributed_variables import MirroredVariable, SyncOnReadVariable
from stratagem._core.options import CommunicationOptions, ReduceOp
from stratagem._core.reduction import (
    Axis,
    CrossDeviceOps,
    combine,
    gather,
    reduce_axes,
    reduce_nest,
)
from stratagem._core.variables import Variable
from stratagem._local.copies import CopiesHosting, Unite
from stratagem._strategies.extended import StrategyExtended
from stratagem_proto.errors import InvalidArgumentError

if TYPE_CHECKING:
    from stratagem._input.sharding import InputWorker
    from stratagem_proto.input_order import BatchRead
    from stratagem_proto.v1.cluster_pb2 import ConfigProto

EQUAL_COPIES = (Mirrored, MirroredVariable)
"""Values whose components are equal by definition."""


class AcrossReplicas(ABC):
    """Brings values of all replicas in sync together.

    Each method is what the hook of that name does in a `StrategyExtended`.
    """

    @abstractmethod
    def reduce_to(
        self, op: ReduceOp, pairs: Sequence[tuple[Any, Any]], options: CommunicationOptions | None
    ) -> list[Any]:
        """Reduce each value of pairs, and copy the result to its destinations."""

    @abstractmethod
    def reduce_axes(self, op: ReduceOp, nest: Any, axis: Axis) -> Any:
        """Reduce each leaf over dimensions of its own and over replicas."""

    @abstractmethod
    def gathered(self, values: Sequence[Any], axis: int) -> list[Any]:
        """Concatenate the components of each value, in the order of replicas."""

    @abstractmethod
    def lengths_before(self, lengths: Sequence[int]) -> Sequence[int]:
        """Return where in concatenations the parts of this process begin."""

    @abstractmethod
    def combine_copies(self, op: ReduceOp, copies: Sequence[torch.Tensor]) -> torch.Tensor:
        """Reduce the copies of a variable."""

    @abstractmethod
    def of_first(self, value: Any) -> Any:
        """Return what the first of all replicas has."""


class AcrossDevices(AcrossReplicas):
    """Brings values together where all replicas are in one process."""

    def __init__(self, cross_device_ops: CrossDeviceOps, count: Callable[[], int]) -> None:
        self._cross_device_ops = cross_device_ops
        self._count = count

    def reduce_to(
        self, op: ReduceOp, pairs: Sequence[tuple[Any, Any]], options: CommunicationOptions | None
    ) -> list[Any]:
        def reduced(leaf: Any, destination: Any) -> Any:
            parts = components(leaf)
            if parts is None:
                return reduce_nest(op, leaf, destination, self._count())
            if isinstance(leaf, EQUAL_COPIES):
                return mean_of_equals(op, leaf)
            values = PerReplica(parts)
            return self._cross_device_ops.reduce(op, values, destination, options)

        return [at_destinations(reduced, value, where) for value, where in pairs]

    def reduce_axes(self, op: ReduceOp, nest: Any, axis: Axis) -> Any:
        return reduce_axes(op, nest, axis, self._count())

    def gathered(self, values: Sequence[Any], axis: int) -> list[Any]:
        return [gather(value, axis) for value in values]

    def lengths_before(self, lengths: Sequence[int]) -> Sequence[int]:
        return [0] * len(lengths)

    def combine_copies(self, op: ReduceOp, copies: Sequence[torch.Tensor]) -> torch.Tensor:
        total = combine(op, copies)
        assert isinstance(total, torch.Tensor)
        return total

    def of_first(self, value: Any) -> Any:
        return value


def mean_of_equals(op: ReduceOp, value: Any) -> Any:
    """Return the mean of a value whose copies are equal; refuse any other reduction."""
    if op is ReduceOp.MEAN:
        return value
    raise InvalidArgumentError(
        f"Cannot reduce {value!r} by {op}: its copies are equal by definition, so that "
        "their sum is probably not meant; use ReduceOp.MEAN, or multiply it yourself"
    )


class ReplicaGroup(ABC):
    """The replicas in sync, of which each process runs equally many.

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
        self.devices: tuple[str, ...] = tuple(devices)
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
    def note_write(self, variable: Variable) -> None:
        """Have other processes check that they have written the same into a mirrored variable."""

    @abstractmethod
    def share_order(self, worker: InputWorker) -> InputWorker:
        """Return a reader that shuffles as all processes do, and compares what it reads."""

    @abstractmethod
    def input_left(self, here: bool, read: BatchRead | None) -> bool:
        """Return whether any process has input for one more step.

        Raises:
            InvalidArgumentError: They have read different data.
        """


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

    def note_write(self, variable: Variable) -> None:
        """Do nothing: there is no other process."""

    def share_order(self, worker: InputWorker) -> InputWorker:
        return worker

    def input_left(self, here: bool, read: BatchRead | None) -> bool:
        return here
