"""Update functions of strategies whose variables are in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stratagem._core.distributed_variables.aggregating import AggregatingVariable
from stratagem._core.distributed_variables.updating import smallest_by_name
from stratagem._core.variables.variable import Variable
from stratagem._strategies.extended import StrategyExtended


class LocalUpdates(StrategyExtended):
    """Runs update functions in this process, on the one copy of each variable."""

    def _update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        copy = var.only_copy if isinstance(var, AggregatingVariable) else var
        return self._update_non_slot(var, partial(fn, copy), args, kwargs, group)

    def _update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        device = getattr(colocate_with, "device_name", self._current_device())
        return self._run_update(device, fn, args, kwargs, group)

    def non_slot_devices(self, var_list: Sequence[Variable]) -> Any:
        return smallest_by_name(var_list)
