"""Parameter servers and the tf.distribute Strategy API for PyTorch.

Everything public is here; modules whose names start with `_` are not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stratagem import config
from stratagem._core import tracebacks as _tracebacks
from stratagem._core.contexts import (
    experimental_set_strategy,
    has_strategy,
    in_cross_replica_context,
)
from stratagem._core.device_names import device
from stratagem._core.distributed_values import DistributedValues, Mirrored, PerReplica
from stratagem._core.notices import Notice
from stratagem._core.options import (
    CommunicationImplementation,
    CommunicationOptions,
    InputContext,
    ReduceOp,
    RunOptions,
    ValueContext,
    VariableAggregation,
    VariableSynchronization,
)
from stratagem._core.replica_context import ReplicaContext, get_replica_context
from stratagem._core.tensors import IndexedSlices
from stratagem._core.variables import Variable
from stratagem._hosting import default_strategy as _default_strategy
from stratagem._input.options import AutoShardPolicy, InputOptions, InputReplicationMode
from stratagem._strategies.extended import StrategyExtended
from stratagem._strategies.strategy import Strategy, get_strategy
from stratagem._version import __version__
from stratagem_proto.errors import (
    AbortedError,
    AlreadyExistsError,
    AttachmentError,
    CancelledError,
    ClosureInputError,
    ContextError,
    DataLossError,
    DeadlineExceededError,
    DifferentTrainingError,
    DuplicateTaskError,
    FailedPreconditionError,
    ForkedProcessError,
    InternalError,
    InvalidArgumentError,
    InvalidNameError,
    InvalidTypeError,
    MalformedStreamError,
    NonFiniteGradientError,
    NotFoundError,
    NotPrimaryError,
    OutOfRangeError,
    PermissionDeniedError,
    ProtocolVersionError,
    PSUnavailableError,
    ResourceExhaustedError,
    RowIndexError,
    SessionLostError,
    StaleVersionError,
    StoreError,
    StratagemError,
    SupersededError,
    UnauthenticatedError,
    UnavailableError,
    UnbatchedInputError,
    UnevenStepsError,
    UnfinishedStepError,
    UnimplementedError,
    UnstagedContributionError,
    UpdateFunctionError,
    VariableNotFoundError,
    VersionExpiredError,
    WorkerFunctionError,
    WorkerLostError,
)

if TYPE_CHECKING:
    from stratagem import (
        cluster_resolver,
        compression,
        consistency,
        contrib,
        coordinator,
        experimental,
        frameworks,
        nn,
        opentelemetry,
        optim,
        partitioners,
        tensorboard,
    )
    from stratagem._cluster.device_filters import ClusterDeviceFilters
    from stratagem._cluster.server import Server
    from stratagem._cluster.tasks import ClusterSpec
    from stratagem._core.reduction import (
        CrossDeviceOps,
        HierarchicalCopyAllReduce,
        NcclAllReduce,
        ReductionToOneDevice,
    )
    from stratagem._hosting.local_steps import LocalSteps
    from stratagem._hosting.optimizer import DistributedOptimizer
    from stratagem._hybrid.optimizer import HybridOptimizer
    from stratagem._input.iterator import DistributedDataset, DistributedIterator, InputIterator
    from stratagem._local.mirrored import MirroredStrategy
    from stratagem._local.one_copy import CentralStorageStrategy, OneDeviceStrategy
    from stratagem._multi_worker.strategy import MultiWorkerMirroredStrategy
    from stratagem._parameter_server.strategy import ParameterServerStrategy
    from stratagem._parameter_server.variables.sharded_variable import ShardedVariable
    from stratagem._parameter_server.variables.shards import VariablePlacement
    from stratagem._ps_client.moving import Servers
    from stratagem._ps_client.survey import ServerTasks, TaskLoad, TaskMove
    from stratagem._ps_client.transport import Traffic
    from stratagem._reader import Reader
    from stratagem._strategies.multi_step import MultiStepContext
    from stratagem._tpu.strategy import TPUStrategy
    from stratagem_proto.v1.cluster_pb2 import ClusterDef, ConfigProto, ServerDef

# Alphabetical; each name that is added is imported above.
__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "AttachmentError",
    "AutoShardPolicy",
    "CancelledError",
    "CentralStorageStrategy",
    "ClosureInputError",
    "ClusterDef",
    "ClusterDeviceFilters",
    "ClusterSpec",
    "CommunicationImplementation",
    "CommunicationOptions",
    "ConfigProto",
    "ContextError",
    "CrossDeviceOps",
    "DataLossError",
    "DeadlineExceededError",
    "DifferentTrainingError",
    "DistributedDataset",
    "DistributedIterator",
    "DistributedOptimizer",
    "DistributedValues",
    "DuplicateTaskError",
    "FailedPreconditionError",
    "ForkedProcessError",
    "HierarchicalCopyAllReduce",
    "HybridOptimizer",
    "IndexedSlices",
    "InputContext",
    "InputIterator",
    "InputOptions",
    "InputReplicationMode",
    "InternalError",
    "InvalidArgumentError",
    "InvalidNameError",
    "InvalidTypeError",
    "LocalSteps",
    "MalformedStreamError",
    "Mirrored",
    "MirroredStrategy",
    "MultiStepContext",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "NonFiniteGradientError",
    "NotFoundError",
    "NotPrimaryError",
    "Notice",
    "OneDeviceStrategy",
    "OutOfRangeError",
    "PSUnavailableError",
    "ParameterServerStrategy",
    "PerReplica",
    "PermissionDeniedError",
    "ProtocolVersionError",
    "Reader",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "ResourceExhaustedError",
    "RowIndexError",
    "RunOptions",
    "Server",
    "ServerDef",
    "ServerTasks",
    "Servers",
    "SessionLostError",
    "ShardedVariable",
    "StaleVersionError",
    "StoreError",
    "StratagemError",
    "Strategy",
    "StrategyExtended",
    "SupersededError",
    "TPUStrategy",
    "TaskLoad",
    "TaskMove",
    "Traffic",
    "UnauthenticatedError",
    "UnavailableError",
    "UnbatchedInputError",
    "UnevenStepsError",
    "UnfinishedStepError",
    "UnimplementedError",
    "UnstagedContributionError",
    "UpdateFunctionError",
    "ValueContext",
    "Variable",
    "VariableAggregation",
    "VariableNotFoundError",
    "VariablePlacement",
    "VariableSynchronization",
    "VersionExpiredError",
    "WorkerFunctionError",
    "WorkerLostError",
    "__version__",
    "cluster_resolver",
    "compression",
    "config",
    "consistency",
    "contrib",
    "coordinator",
    "device",
    "experimental",
    "experimental_set_strategy",
    "frameworks",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "nn",
    "opentelemetry",
    "optim",
    "partitioners",
    "tensorboard",
]


_default_strategy.install()
_tracebacks.install()

# What only some programs use, by its module: loaded when first asked for. Loading takes time, and
# by the number of its objects lets Python look for garbage among all of torch's, which takes
# longer. Programs meet some of these classes without asking for them by name, so their own bodies
# say that they belong here.
_LATE = {
    "CentralStorageStrategy": "stratagem._local.one_copy",
    "ClusterDef": "stratagem_proto.v1.cluster_pb2",
    "ClusterDeviceFilters": "stratagem._cluster.device_filters",
    "ClusterSpec": "stratagem._cluster.tasks",
    "ConfigProto": "stratagem_proto.v1.cluster_pb2",
    "CrossDeviceOps": "stratagem._core.reduction",
    "DistributedDataset": "stratagem._input.iterator",
    "DistributedIterator": "stratagem._input.iterator",
    "DistributedOptimizer": "stratagem._hosting.optimizer",
    "HierarchicalCopyAllReduce": "stratagem._core.reduction",
    "HybridOptimizer": "stratagem._hybrid.optimizer",
    "InputIterator": "stratagem._input.iterator",
    "LocalSteps": "stratagem._hosting.local_steps",
    "MirroredStrategy": "stratagem._local.mirrored",
    "MultiStepContext": "stratagem._strategies.multi_step",
    "MultiWorkerMirroredStrategy": "stratagem._multi_worker.strategy",
    "NcclAllReduce": "stratagem._core.reduction",
    "OneDeviceStrategy": "stratagem._local.one_copy",
    "ParameterServerStrategy": "stratagem._parameter_server.strategy",
    "Reader": "stratagem._reader",
    "ReductionToOneDevice": "stratagem._core.reduction",
    "Server": "stratagem._cluster.server",
    "ServerDef": "stratagem_proto.v1.cluster_pb2",
    "ServerTasks": "stratagem._ps_client.survey",
    "Servers": "stratagem._ps_client.moving",
    "ShardedVariable": "stratagem._parameter_server.variables.sharded_variable",
    "TPUStrategy": "stratagem._tpu.strategy",
    "TaskLoad": "stratagem._ps_client.survey",
    "TaskMove": "stratagem._ps_client.survey",
    "Traffic": "stratagem._ps_client.transport",
    "VariablePlacement": "stratagem._parameter_server.variables.shards",
    "cluster_resolver": "stratagem.cluster_resolver",
    "compression": "stratagem.compression",
    "consistency": "stratagem.consistency",
    "contrib": "stratagem.contrib",
    "coordinator": "stratagem.coordinator",
    "experimental": "stratagem.experimental",
    "frameworks": "stratagem.frameworks",
    "nn": "stratagem.nn",
    "opentelemetry": "stratagem.opentelemetry",
    "optim": "stratagem.optim",
    "partitioners": "stratagem.partitioners",
    "tensorboard": "stratagem.tensorboard",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_LATE[name])
    is_module = module.__name__ == f"{__name__}.{name}"
    globals()[name] = value = module if is_module else getattr(module, name)
    _show_public_name(name)
    return value


def __dir__() -> list[str]:
    return [*__all__]


def _show_public_name(name: str) -> None:
    """Let tracebacks, `help` and pickles say `stratagem.X`, not where X is kept."""
    if hasattr(globals()[name], "__qualname__"):
        globals()[name].__module__ = __name__


for _name in {*__all__} - {*_LATE}:
    _show_public_name(_name)
