"""What scenarios are written against: TensorFlow and Stratagem in the same words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Coordinated(Protocol):
    """A cluster whose workers run what one program schedules.

    Attributes:
        strategy: The program's.
        coordinator: The program's.
    """

    strategy: Any
    coordinator: Any

    def lose_worker(self, index: int) -> None:
        """End a worker without warning."""

    def return_worker(self, index: int) -> None:
        """Start a worker that was lost, at its address."""

    def lose_server(self) -> None:
        """End the parameter server without warning, for good."""


class Library(Protocol):
    """What the two libraries spell differently, and their namespaces.

    Attributes:
        distribute: The names of `tf.distribute`, with those of `experimental`, of
            variables (`Variable`, `VariableAggregation`, `IndexedSlices`) and of the
            classes of values (`PerReplica`, `Mirrored`).
        v1: The same of the V1 API, whose strategies still have the old methods.
        contrib: The names of `tf.contrib.distribute` of 1.12.
        roles: The functions that say who is who in a cluster.
        devices: The functions about names of devices.
        slurm: The functions that expand what Slurm lists.
    """

    distribute: Any
    v1: Any
    contrib: Any
    roles: Any
    devices: Any
    slurm: Any

    def tensor(self, value: Any, dtype: str = "float32") -> Any:
        """Return numbers as a tensor."""

    def dtype(self, name: str) -> Any:
        """Return a data type by its name, such as "float32"."""

    def shape(self, tensor: Any) -> list[int]:
        """Return the sizes of a tensor."""

    def total(self, tensor: Any, axis: int | None = None) -> Any:
        """Return the sum of the elements, or of those along an axis."""

    def matmul(self, left: Any, right: Any) -> Any:
        """Return the product of two matrices."""

    def slices(self, values: Any, indices: Any, rows: int) -> Any:
        """Return IndexedSlices of a tensor that has so many rows."""

    def gradients(self, function: Callable[..., Any], *inputs: Any) -> list[Any]:
        """Return the gradients of the sum of a function's result."""

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function as the library's compiler makes it from another."""

    def recorded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that records all that another does, and replays it."""

    def device(self, name: str) -> AbstractContextManager[Any]:
        """Scope in which a device is the current one."""

    def write_copy(self, copy: Any, value: float) -> None:
        """Write a copy of a variable, behind the variable's back."""

    def device_of(self, variable: Any) -> str:
        """Return the name of the device on which a variable lives."""

    def creator_scope(self, creator: Callable[..., Any]) -> AbstractContextManager[Any]:
        """Scope in which `creator(next_creator, **kwargs)` makes the variables."""

    def range(self, count: int) -> Any:
        """Return the dataset of the numbers below `count`, to `.batch(n)`.

        Before that it can be `.shuffle(n)`d, after it `.cache()`d or `.repeat()`ed.
        """

    def dataset(self, elements: Sequence[Any]) -> Any:
        """Return the dataset of some elements, numbers or nests of them."""

    def batched(self, dataset: Any, size: int) -> Any:
        """Return a dataset of batches of another one's elements."""

    def sharded(self, strategy: Any, dataset: Any, policy: str) -> Any:
        """Distribute a dataset under an AutoShardPolicy."""

    def save(self, variables: Mapping[str, Any], wait: bool = True) -> Any:
        """Return a checkpoint of variables, each named as its key.

        Args:
            variables: The variables.
            wait: Whether it has to be written when this returns.
        """

    def restore(self, checkpoint: Any, variables: Mapping[str, Any]) -> None:
        """Give variables their values of a checkpoint."""

    def restore_first(
        self, checkpoint: Any, strategy: Any, name: str, make: Callable[[], Any]
    ) -> Any:
        """Restore a checkpoint, then make and return the variable that it has."""

    def device_filters(self, filters: Any) -> dict[str, dict[str, list[str]]]:
        """Return what ClusterDeviceFilters have for each job and task."""

    def visible_servers(self, filters: list[str]) -> list[str]:
        """Return which of two servers a worker sees in a session with filters."""

    def shape_with(self, sizes: Sequence[int | None]) -> Any:
        """Return what partitioners take as a shape; None is a size not known."""

    def whole(self, table: Any) -> Any:
        """Return a ShardedVariable as one tensor."""

    def looked_up(self, table: Any, ids: Any) -> Any:
        """Return rows of a ShardedVariable, as an embedding layer does."""

    def served(self, servers: int, partitioner: Any = None) -> AbstractContextManager[Any]:
        """Scope with a ParameterServerStrategy on servers of this process."""

    def coordinated(
        self, workers: int = 1, lossy: bool = False
    ) -> AbstractContextManager[Coordinated]:
        """Scope with a coordinator, workers and one parameter server.

        Args:
            workers: How many workers there are.
            lossy: Whether workers and the server can be lost.
        """

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function as coordinators schedule it."""

    def status(self, value: Any) -> str:
        """Return where a `RemoteValue` stands, such as "READY"."""

    def require(self, condition: Any, message: str) -> None:
        """Raise InvalidArgumentError with a message unless a condition holds."""

    def opened(self, value: Any) -> tuple[str, Any] | None:
        """Return the kind of a value of this library and what it holds.

        Returns:
            None where it is not one whose content can be told.
        """


class Names:
    """The names of several namespaces; the first that has a name gives it."""

    def __init__(self, *namespaces: Any) -> None:
        self._namespaces = namespaces

    def __getattr__(self, name: str) -> Any:
        for namespace in self._namespaces:
            if hasattr(namespace, name):
                return getattr(namespace, name)
        raise AttributeError(f"no namespace has {name!r}")


def filters_by_task(message: Any) -> dict[str, dict[str, list[str]]]:
    """Return the device filters in a message by job and task."""
    return {
        job.name: {str(index): list(job.tasks[index].device_filters) for index in sorted(job.tasks)}
        for job in sorted(message.jobs, key=lambda job: job.name)
    }
