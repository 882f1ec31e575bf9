"""What TensorFlow keeps, or kept, in `experimental`, for `tf.distribute` and for `tf`."""

from __future__ import annotations

from stratagem import partitioners
from stratagem._core.options import CommunicationImplementation, CommunicationOptions, ValueContext
from stratagem._input.iterator import Optional
from stratagem._local.one_copy import CentralStorageStrategy
from stratagem._multi_worker.strategy import MultiWorkerMirroredStrategy
from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem._parameter_server.variables.variable import cache_variable_reads

CollectiveCommunication = CommunicationImplementation
CollectiveHints = CommunicationOptions

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "Optional",
    "ParameterServerStrategy",
    "ValueContext",
    "cache_variable_reads",
    "partitioners",
]
