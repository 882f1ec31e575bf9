"""The API of `tf.contrib.distribute` as of TensorFlow 1.12, where replicas are towers.

Its strategies are those of `stratagem` with the methods of 1.12; each method, class and function
warns once and says what to write instead. There are no graphs: what returned operations behaves as
it did in eager execution. The names that `tf.contrib.distribute` had in addition in 1.13 are here
too.
"""

from __future__ import annotations

from stratagem._core.options import VariableAggregation
from stratagem.contrib._loops import MapOutput, MultiStepContext
from stratagem.contrib._strategies import (
    MirroredStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    TPUStrategy,
)
from stratagem.contrib._strategy import DistributionStrategy
from stratagem.contrib._towers import (
    TowerContext,
    get_cross_replica_context,
    get_cross_tower_context,
    get_distribution_strategy,
    get_tower_context,
    has_distribution_strategy,
    in_cross_tower_context,
    increment_var,
)

__all__ = [
    "DistributionStrategy",
    "MapOutput",
    "MirroredStrategy",
    "MultiStepContext",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "TPUStrategy",
    "TowerContext",
    "VariableAggregation",
    "get_cross_replica_context",
    "get_cross_tower_context",
    "get_distribution_strategy",
    "get_tower_context",
    "has_distribution_strategy",
    "in_cross_tower_context",
    "increment_var",
]


def _show_public_names() -> None:
    """Let tracebacks, `help` and pickles say `stratagem.contrib.X`."""
    for name in __all__:
        if globals()[name].__module__.startswith(__name__):
            globals()[name].__module__ = __name__


_show_public_names()
