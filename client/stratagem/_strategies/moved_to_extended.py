"""What strategies of 1.13 had themselves, too, of their `extended`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratagem._core.deprecation import old_spelling

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy


def _moved(old: str, new: str) -> property:
    """Return a property that gives the method or property `new` of `extended`."""

    def read(strategy: AnyStrategy) -> Any:
        return getattr(strategy._extended, new)

    read.__name__ = read.__qualname__ = old
    read.__doc__ = f"`extended.{new}`."
    return property(old_spelling(f"extended.{new}")(read))


class MovedToExtended:
    """The part of `Strategy` that is part of `StrategyExtended` now. Spec: NAM-2."""

    batch_reduce = _moved("batch_reduce", "batch_reduce_to")
    between_graph = _moved("between_graph", "experimental_between_graph")
    broadcast = _moved("broadcast", "broadcast_to")
    call_for_each_replica = _moved("call_for_each_replica", "call_for_each_replica")
    colocate_vars_with = _moved("colocate_vars_with", "colocate_vars_with")
    non_slot_devices = _moved("non_slot_devices", "non_slot_devices")
    parameter_devices = _moved("parameter_devices", "parameter_devices")
    read_var = _moved("read_var", "read_var")
    require_static_shapes = _moved(
        "require_static_shapes", "experimental_require_static_shapes"
    )
    run_steps_on_dataset = _moved(
        "run_steps_on_dataset", "experimental_run_steps_on_iterator"
    )
    should_checkpoint = _moved("should_checkpoint", "should_checkpoint")
    should_init = _moved("should_init", "experimental_should_init")
    should_save_summary = _moved("should_save_summary", "should_save_summary")
    update = _moved("update", "update")
    update_non_slot = _moved("update_non_slot", "update_non_slot")
    value_container = _moved("value_container", "value_container")
    variable_created_in_scope = _moved(
        "variable_created_in_scope", "variable_created_in_scope"
    )
    worker_devices = _moved("worker_devices", "worker_devices")
