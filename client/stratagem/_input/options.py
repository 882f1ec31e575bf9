"""What callers may say about how their data reaches the replicas."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple

from stratagem._core.options import warn_of_no_effect
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError


class InputReplicationMode(Enum):
    """How often a dataset function is called.

    `PER_WORKER` calls it once for all replicas of a worker, `PER_REPLICA` once for each of them.
    Spec: ENU-5.
    """

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


class AutoShardPolicy(IntEnum):
    """What of a dataset each of several workers reads.

    `OFF` gives every worker all of it, `FILE` every worker some of the files of a dataset that has
    `files` and `with_files(files)`, `DATA` every worker some of the rows of each batch; `AUTO` is
    `FILE` where the dataset has files, else `DATA`. A single worker reads everything.

    Under all of them a batch is cut into a chunk for each replica of all workers that step
    together, so under `OFF` and `FILE` it lasts several steps.

    Spec: ENU-6.
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


class _InputOptions(NamedTuple):
    experimental_fetch_to_device: bool
    experimental_replication_mode: InputReplicationMode
    experimental_place_dataset_on_device: bool
    experimental_per_replica_buffer_size: int


class InputOptions(_InputOptions):
    """Options of `experimental_distribute_dataset` and its sister from a function.

    Attributes:
        experimental_fetch_to_device: Whether elements go to the devices of their replicas, or stay
            on the host. None means True.
        experimental_replication_mode: How often a dataset function is called.
        experimental_place_dataset_on_device: Has no effect, and warns once if set: datasets are
            read on the host. For datasets of functions it goes with `PER_REPLICA` and elements that
            are not fetched.
        experimental_per_replica_buffer_size: How many rounds a thread reads ahead of the one in
            use; with 0 the calling thread reads.

    Spec: ENU-11.
    """

    __slots__ = ()

    def __new__(
        cls,
        experimental_fetch_to_device: bool | None = None,
        experimental_replication_mode: InputReplicationMode = (InputReplicationMode.PER_WORKER),
        experimental_place_dataset_on_device: bool = False,
        experimental_per_replica_buffer_size: int = 1,
    ) -> InputOptions:
        if experimental_fetch_to_device is None:
            experimental_fetch_to_device = True
        return super().__new__(
            cls,
            experimental_fetch_to_device,
            experimental_replication_mode,
            experimental_place_dataset_on_device,
            experimental_per_replica_buffer_size,
        )

    @property
    def per_replica(self) -> bool:
        """Whether each replica has a pipeline of its own."""
        return self.experimental_replication_mode is InputReplicationMode.PER_REPLICA


def check_for_dataset(options: InputOptions | None) -> None:
    """Check the options with which one dataset is split.

    Raises:
        UnimplementedError: Each replica is to have a pipeline of its own.
        InvalidTypeError: They are no `InputOptions`.
        InvalidArgumentError: One has no meaning. Spec: INP-31, INP-34.
    """
    _check_fields(options)
    if options is not None and options.per_replica:
        raise UnimplementedError(
            "InputReplicationMode.PER_REPLICA is only supported in "
            "`distribute_datasets_from_function`, for one dataset cannot be read by "
            "each replica alone; use that, or PER_WORKER"
        )
    _warn_of_placing(options)


def check_for_function(options: InputOptions | None) -> None:
    """Check the options with which datasets are made by a function.

    Raises:
        InvalidTypeError: They are no `InputOptions`.
        InvalidArgumentError: They contradict each other, or one has no meaning. Spec: INP-31,
            INP-32.
    """
    _check_fields(options)
    if options is None or not options.experimental_place_dataset_on_device:
        return
    if not options.per_replica:
        raise InvalidArgumentError(
            "With `experimental_place_dataset_on_device` you must also specify "
            "`PER_REPLICA` as the experimental_replication_mode"
        )
    if options.experimental_fetch_to_device:
        raise InvalidArgumentError(
            "`experimental_place_dataset_on_device` can not be set to True when "
            "`experimental_fetch_to_device` is; set one of them to False"
        )
    _warn_of_placing(options)


def _warn_of_placing(options: InputOptions | None) -> None:
    if options is not None and options.experimental_place_dataset_on_device:
        warn_of_no_effect(
            "InputOptions.experimental_place_dataset_on_device",
            "datasets are read on the host; a function may make its tensors on a GPU",
        )


def _check_fields(options: InputOptions | None) -> None:
    if options is None:
        return
    if not isinstance(options, InputOptions):
        raise InvalidTypeError(f"options must be InputOptions(...), not {type(options).__name__}")
    mode = options.experimental_replication_mode
    if not isinstance(mode, InputReplicationMode):
        raise InvalidArgumentError(
            f"experimental_replication_mode must be one of InputReplicationMode, not {mode!r}"
        )
    _check_buffer(options.experimental_per_replica_buffer_size)


def _check_buffer(size: int) -> None:
    if not isinstance(size, int) or size < 0:
        raise InvalidArgumentError(
            f"experimental_per_replica_buffer_size must be an integer >=0, not {size!r}"
        )
