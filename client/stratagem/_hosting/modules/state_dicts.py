"""Fresh values for `state_dict()` of hosted modules."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from torch import nn

from stratagem._core.contexts.context import cross_replica, current_replica_id
from stratagem._hosting.modules.hosted_parameter import hosted_parameter
from stratagem_proto.errors import CancelledError


def keep_fresh(modules: Iterable[nn.Module]) -> None:
    """Let `state_dict()` of these modules have the newest values.

    Parameters follow their variables when replicas start. What is saved after the last step would
    otherwise be one step behind.
    """
    for module in modules:
        if refresh_first not in module._state_dict_pre_hooks.values():
            module.register_state_dict_pre_hook(refresh_first)


def refresh_first(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    """State-dict pre-hook; a plain function, so that modules pickle and copy.

    In a replica the values stay those that it works with; so do they once the strategy is closed,
    and in a copy, which is no business of a strategy.
    """
    # Parts of the module come with a prefix, after the whole has been refreshed.
    if prefix or current_replica_id() is not None:
        return
    hosted = next(filter(None, map(hosted_parameter, module.parameters())), None)
    if hosted is None:
        return
    strategy: Any = hosted.variable.distribute_strategy
    with suppress(CancelledError), cross_replica(strategy):
        strategy.extended._before_replicas()
