"""The strategy that is in charge."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from stratagem._core.contexts import context

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy

# The stack of contexts is below strategies and knows no more than that they are there.
get_strategy = cast("Callable[[], Strategy]", context.get_strategy)


def default_strategy() -> Strategy:
    """Return the strategy that is in charge outside of every scope."""
    return cast("Strategy", context.DEFAULT.strategy)
