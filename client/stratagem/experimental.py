"""The names that `tf.distribute` keeps, or kept, in `tf.distribute.experimental`."""

from __future__ import annotations

from stratagem import partitioners
from stratagem._enums import CommunicationImplementation
from stratagem._options import CommunicationOptions, ValueContext
from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem._parameter_server.variables.cached_reads import cache_variable_reads
from stratagem._strategies.central_storage import CentralStorageStrategy
from stratagem._strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy

CollectiveCommunication = CommunicationImplementation
CollectiveHints = CommunicationOptions

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "ValueContext",
    "cache_variable_reads",
    "partitioners",
]
