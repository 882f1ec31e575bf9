"""The public face of every strategy, and which strategy is in charge."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from stratagem._core import contexts
from stratagem._core.contexts import (
    ImplicitScope,
    Scope,
    current_context,
    require_cross_replica_or_default,
    running_with,
)
from stratagem._core.distributed_values import warn_of_replicas_without_rows
from stratagem._core.nests import leaves
from stratagem._core.options import ReduceOp, RunOptions, reduce_op_from
from stratagem._core.reduction import Axis
from stratagem._strategies.checkpoints import CheckpointMethods
from stratagem._strategies.datasets import DatasetMethods
from stratagem._strategies.extended import StrategyExtended
from stratagem._strategies.extended_arguments import require_options
from stratagem._strategies.old_spellings import MovedToExtended, OldSpellings
from stratagem._strategies.progress import ProgressMethods
from stratagem_proto.errors import ContextError, InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from stratagem_proto.v1.cluster_pb2 import ConfigProto


_Self = TypeVar("_Self", bound="Strategy")


class Strategy(CheckpointMethods, DatasetMethods, ProgressMethods, OldSpellings, MovedToExtended):
    """A way to distribute training over devices and machines.

    Everything that differs between strategies is in its `StrategyExtended`.

    Args:
        extended: That object.

    Spec: STR-1 to STR-24.
    """

    _extended: StrategyExtended

    def __init__(self, extended: StrategyExtended) -> None:
        self._extended = extended

    @property
    def extended(self) -> StrategyExtended:
        """Methods for libraries and for authors of strategies. Spec: STR-2."""
        return self._extended

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas whose gradients are combined. Spec: STR-3."""
        return self._extended._num_replicas_in_sync

    @property
    def cluster_resolver(self) -> Any:
        """The resolver that describes the cluster, None without. Spec: STR-4."""
        return getattr(self._extended, "_cluster_resolver", None)

    def scope(self: _Self, name: str | None = None) -> Scope[_Self]:
        """Return a context manager that makes this strategy the current one.

        Variables and modules created inside belong to the strategy.

        Args:
            name: Prefix for the names of the modules' parameters.

        Raises:
            ContextError: On entering: a replica is running, or another strategy is in charge. Spec:
                CTX-10 to CTX-13.
        """
        return Scope(self, name)

    def _implicit_scope(self) -> AbstractContextManager[object]:
        """Return the scope that the strategy's own methods enter."""
        return ImplicitScope(self)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any:
        """Call `fn` once per replica and merge the results.

        Args:
            fn: The replica function.
            args: Positional arguments, a list or a tuple. Of distributed values in it, however
                deep, each replica gets its component.
            kwargs: Keyword arguments, likewise.
            options: How to run.

        Returns:
            The nest that `fn` returned; leaves that are not the same object on all replicas become
            `PerReplica`. Small integers of Python are one object each: return counts as tensors.

        Raises:
            InvalidArgumentError: `args` is neither list nor tuple, or the replicas return different
                structures.
            InvalidTypeError: `options` are no `RunOptions`.
            ContextError: A replica is running, another strategy is in charge, or the replicas make
                different numbers of merge calls.

        Spec: STR-20, RUN-1 to RUN-7.
        """
        if not isinstance(args, list | tuple):
            raise InvalidArgumentError(
                "positional args must be a list or tuple, got "
                f"{type(args).__name__}; write args=(x,) for a single argument"
            )
        require_options(options)
        with running_with(options):
            return self._extended.call_for_each_replica(fn, args, kwargs)

    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: Axis | None = None) -> Any:
        """Reduce a nest of values over replicas, to the current device.

        Without an axis, it warns if a replica had no data when it returned its part.

        Args:
            reduce_op: The reduction.
            value: Typically what `run` returned.
            axis: Dimension, or several, to reduce as well; a mean then weights every element alike,
                however many a replica has.

        Returns:
            The nest with one tensor per leaf.

        Raises:
            InvalidArgumentError: `reduce_op` is no reduction, a plain value is to be summed, or
                shapes differ between replicas.
            InvalidTypeError: With an axis: `reduce_op` is no reduction, or `axis` is neither an
                integer nor several.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: RED-1 to RED-27.
        """
        require_cross_replica_or_default(self._extended, "reduce")
        if axis is None:
            warn_of_replicas_without_rows(value)
            return self._extended._reduce(reduce_op_from(reduce_op), value)
        if not isinstance(reduce_op, ReduceOp | str):
            raise InvalidTypeError(
                f"Expected `reduce_op` to be a ReduceOp or its name, not {type(reduce_op).__name__}"
            )
        return self._extended._reduce_axes(reduce_op_from(reduce_op), value, axis)

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenate the values of all replicas, on the current device.

        Args:
            value: Nest of distributed tensors; plain ones are returned as they are.
            axis: Dimension along which to join; sizes may differ there only.

        Raises:
            InvalidArgumentError: The tensors do not fit together.
            UnimplementedError: A leaf is an `IndexedSlices`.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: GAT-1 to GAT-8.
        """
        context = current_context()
        if context is not None and context.replica_context is not None:
            raise ContextError(
                "`strategy.gather` only works in cross-replica context; in a replica "
                "use get_replica_context().all_gather()"
            )
        require_cross_replica_or_default(self._extended, "gather")
        return self._extended._gather(value, axis)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Return the components of `value` that belong to this process's replicas.

        Spec: LOC-1 to LOC-8.
        """
        return self._extended._local_results(value)

    def group(self, value: Any, name: str | None = None) -> Any:
        """Return a single local component as it is, and None for several.

        What `value` stands for has been carried out already.

        Args:
            value: Anything that `run` returns.
            name: Name of the group; with one, nothing is returned.

        Spec: GRP-1.
        """
        parts = leaves(self.experimental_local_results(value))
        return parts[0] if len(parts) == 1 and name is None else None

    def update_config_proto(self, config_proto: ConfigProto) -> ConfigProto:
        """Return a copy of a session's configuration as this strategy needs it.

        Args:
            config_proto: The configuration; it stays as it is.

        Raises:
            InvalidTypeError: `config_proto` is something else.

        Spec: CFG-2, MS-14.
        """
        # Late: nobody who calls this has not loaded it, and others need no protobuf.
        from stratagem_proto.v1.cluster_pb2 import ConfigProto

        if not isinstance(config_proto, ConfigProto):
            raise InvalidTypeError(
                "`update_config_proto` takes a stratagem.ConfigProto, not "
                f"{type(config_proto).__name__}"
            )
        updated = ConfigProto()
        updated.CopyFrom(config_proto)
        self._extended._update_config_proto(updated)
        return updated

    def __deepcopy__(self: _Self, memo: dict[int, Any]) -> _Self:
        """Return a strategy of its own, distinct from this one. Spec: CTX-41."""
        result = type(self).__new__(type(self))
        memo[id(self)] = result
        vars(result).update(copy.deepcopy(vars(self), memo))
        result._extended._container = weakref.ref(result)
        return result

    def __copy__(self) -> NoReturn:
        """Refuse: `extended` belongs to one strategy. Spec: CTX-37."""
        raise ContextError("Must only deepcopy a Strategy; use copy.deepcopy")


# The stack of contexts is below strategies and knows no more than that they are there.
get_strategy: Callable[[], Strategy] = cast("Callable[[], Strategy]", contexts.get_strategy)


def default_strategy() -> Strategy:
    """Return the strategy that is in charge outside of every scope."""
    return cast("Strategy", contexts.DEFAULT.strategy)
