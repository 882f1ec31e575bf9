"""What the core knows of the classes above it, which it does not import.

Strategies are made of the core, and the core acts for them: a scope asks its strategy what to
create, a variable asks how many copies count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

if TYPE_CHECKING:
    from stratagem._core.names import UniqueNames
    from stratagem._core.options import CommunicationOptions, ReduceOp, RunOptions
    from stratagem_proto.input_order import BatchRead
    from stratagem_proto.v1.cluster_pb2 import ConfigProto


Seen: TypeAlias = Mapping[int, "int | None"]
"""The versions of parts of parameters that were here, by what identifies the parts."""


class LocalStepsTold:
    """What is told of local steps, of which nothing else knows before they are shared.

    Where nothing counts steps, nothing needs to be told.
    """

    def begin_local_step(self) -> None:
        """Note that this worker steps by itself.

        Raises:
            FailedPreconditionError: What comes of the step could not be counted once.
        """

    @contextmanager
    def sharing(self) -> Iterator[bool]:
        """Let what follows be the share of the local steps until now, for checkpoints one step.

        Yields whether a former process may have shared them already, which then counts.
        """
        yield False

    def drop_local_steps(self) -> None:
        """Note that what was stepped since the last share does not count."""

    @property
    def has_nothing_to_share(self) -> bool:
        """Whether the program counts its steps, and has taken none since it was started."""
        return False


class AnyStrategy(Protocol):
    """A `Strategy`, as replicas and variables meet it."""

    @property
    def extended(self) -> AnyExtended: ...

    @property
    def _extended(self) -> AnyExtended: ...

    @property
    def num_replicas_in_sync(self) -> int: ...

    @property
    def cluster_resolver(self) -> Any: ...

    def scope(self, name: str | None = None) -> AbstractContextManager[Any]: ...

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any: ...

    def reduce(
        self,
        reduce_op: ReduceOp | str,
        value: Any,
        axis: int | tuple[int, ...] | list[int] | None = None,
    ) -> Any: ...

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]: ...

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[..., Any], options: Any = None
    ) -> Any: ...

    def update_config_proto(self, config_proto: ConfigProto) -> ConfigProto: ...

    def _implicit_scope(self) -> AbstractContextManager[object]: ...


class AnyHosting(Protocol):
    """What makes variables of modules built in a scope, as strategies meet it."""

    @property
    def trains_in_place(self) -> bool: ...

    def watching(self, name: str | None) -> AbstractContextManager[object]: ...

    def before_replicas(self) -> None: ...

    def after_replicas(self) -> None: ...

    def ran(self) -> None: ...

    def created(self, variable: Any) -> None: ...

    def state_dict(self) -> dict[str, torch.Tensor]: ...

    def load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool) -> Any: ...


class AnyExtended(Protocol):
    """A `StrategyExtended`, as replicas, variables and scopes meet it."""

    _names: UniqueNames

    @property
    def _hosting(self) -> AnyHosting | None: ...

    @property
    def _default_device(self) -> str | None: ...

    @property
    def _first_replica_id(self) -> int: ...

    @property
    def _num_local_replicas(self) -> int: ...

    @property
    def worker_devices(self) -> Sequence[str]: ...

    @property
    def should_checkpoint(self) -> bool: ...

    def _replica_devices(self) -> Sequence[Any]: ...

    def _container_strategy(self) -> AnyStrategy: ...

    def _before_replicas(self) -> None: ...

    def _after_replicas(self) -> None: ...

    def _one_moment(self) -> AbstractContextManager[None]: ...

    def _scope_resources(self, name: str | None) -> AbstractContextManager[object]: ...

    def _create_in_scope(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any: ...

    def _input_left(self, here: bool, read: BatchRead | None) -> bool: ...

    def reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None = None,
    ) -> Any: ...

    def batch_reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]: ...

    def update(self, var: Any, fn: Callable[..., Any], args: Sequence[Any] = ()) -> Any: ...

    def _state_dict(self) -> dict[str, torch.Tensor]: ...

    def _load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool) -> Any: ...

    def _note_write(self, variable: Any) -> None: ...

    def _combine_copies(
        self, reduce_op: ReduceOp, copies: Sequence[torch.Tensor]
    ) -> torch.Tensor: ...

    def _values_of(self, variables: Sequence[Any]) -> list[torch.Tensor]: ...

    def _write_each(self, write: Any, values: Mapping[Any, Any]) -> None: ...

    def _rows_of(
        self, variables: Sequence[Any], rows: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]: ...

    def _of_first_replica(self, value: Any) -> Any: ...

    def _gathered(self, values: Sequence[Any], axis: int) -> list[Any]: ...

    def _lengths_before(self, lengths: Sequence[int]) -> Sequence[int]: ...


class AnyReplicaContext(Protocol):
    """A `ReplicaContext`, as the stack of contexts meets it."""

    def merge_call(self, merge_fn: Callable[..., Any], args: Sequence[Any] = ()) -> Any: ...

    @property
    def strategy(self) -> AnyStrategy: ...
