"""The public names, by kind."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import stratagem


class Kind(NamedTuple):
    """Names that are explained on one page.

    Attributes:
        page: The name of the page's file.
        title: Its title.
        what: What these names are for, in a sentence.
        names: The names, as in `stratagem.X`.
    """

    page: str
    title: str
    what: str
    names: tuple[str, ...]


STRATEGIES = Kind(
    "strategies",
    "Strategies",
    "Where variables are, and who computes what.",
    (
        "ParameterServerStrategy",
        "MirroredStrategy",
        "MultiWorkerMirroredStrategy",
        "CentralStorageStrategy",
        "OneDeviceStrategy",
        "TPUStrategy",
        "Strategy",
        "StrategyExtended",
        "get_strategy",
        "has_strategy",
        "experimental_set_strategy",
        "in_cross_replica_context",
        "get_replica_context",
        "ReplicaContext",
        "MultiStepContext",
        "RunOptions",
        "ValueContext",
        "Traffic",
        "Notice",
        "__version__",
    ),
)
OPTIMIZERS = Kind(
    "optimizers",
    "Optimizers and reductions",
    "What steps variables, and what brings gradients and values of replicas together.",
    (
        "DistributedOptimizer",
        "HybridOptimizer",
        "LocalSteps",
        "ReduceOp",
        "CommunicationOptions",
        "CommunicationImplementation",
        "CrossDeviceOps",
        "HierarchicalCopyAllReduce",
        "NcclAllReduce",
        "ReductionToOneDevice",
        "IndexedSlices",
    ),
)
VARIABLES = Kind(
    "variables",
    "Variables and values",
    "What programs read and write, and values with a part for each replica.",
    (
        "Variable",
        "ShardedVariable",
        "VariableAggregation",
        "VariableSynchronization",
        "VariablePlacement",
        "DistributedValues",
        "PerReplica",
        "Mirrored",
    ),
)
INPUT = Kind(
    "input",
    "Input",
    "Datasets that are divided over replicas and workers.",
    (
        "DistributedDataset",
        "DistributedIterator",
        "InputIterator",
        "InputContext",
        "InputOptions",
        "InputReplicationMode",
        "AutoShardPolicy",
    ),
)
CLUSTERS = Kind(
    "clusters",
    "Clusters and servers",
    "Who belongs to a cluster, and servers that come and go.",
    (
        "ClusterSpec",
        "ClusterDeviceFilters",
        "Server",
        "Servers",
        "ServerTasks",
        "TaskLoad",
        "TaskMove",
        "ClusterDef",
        "ServerDef",
        "ConfigProto",
        "device",
    ),
)
READING = Kind(
    "reading",
    "Reading",
    "What follows versions of what is trained, in any process.",
    ("Reader",),
)
ERRORS = Kind(
    "errors",
    "Errors",
    "All belong to one tree, whose root is `StratagemError`.",
    tuple(
        name
        for name in dict.fromkeys(["StratagemError", *stratagem.__all__])
        if isinstance(value := getattr(stratagem, name), type) and issubclass(value, Exception)
    ),
)
KINDS = (STRATEGIES, OPTIMIZERS, VARIABLES, INPUT, CLUSTERS, READING, ERRORS)
"""All kinds of names that are no modules."""

FOLDERS = (
    *(name for name in stratagem.__all__ if isinstance(getattr(stratagem, name), ModuleType)),
    "stratagem_deploy",
)
"""The public modules of `stratagem`, and what starts clusters."""


def members(module: str) -> list[str]:
    """Return the public names of a module."""
    loaded = import_module(module)
    return [*getattr(loaded, "__all__", ())]


def inherits_from_private_classes(module: str, name: str) -> bool:
    """Return whether a name is a class with direct bases of ours that are not public.

    What it inherits from these is explained nowhere else.
    """
    value = getattr(import_module(module), name)
    return isinstance(value, type) and any(
        base.__module__.startswith("stratagem") and base.__name__ not in stratagem.__all__
        for base in value.__bases__
    )
