"""Scenarios' library as TensorFlow provides it; runs in an environment of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import (
    device_util,
    distribute_lib,
    distribute_utils,
    multi_worker_util,
    ps_values,
    sharded_variable,
    values,
)
from tensorflow.python.distribute.cluster_resolver import slurm_cluster_resolver

from tests.differential.libraries.servers import (
    ServerProcesses,
    ServerThreads,
    free_address,
)
from tests.differential.libraries.towers import CONTRIB
from tests.differential.library import Names, filters_by_task

LOGICAL_CPUS = 4


def set_logical_cpus() -> None:
    """Split the CPU, which only works before TensorFlow has used it."""
    physical = tf.config.list_physical_devices("CPU")[0]
    cpus = [tf.config.LogicalDeviceConfiguration() for _ in range(LOGICAL_CPUS)]
    tf.config.set_logical_device_configuration(physical, cpus)


class TensorFlow:
    """`Library` by TensorFlow 2."""

    def __init__(self) -> None:
        internal = values, distribute_utils, distribute_lib, sharded_variable
        newest = tf.distribute, tf.distribute.experimental, tf.data.experimental, tf.experimental
        first = tf.compat.v1.distribute, tf.compat.v1.distribute.experimental
        cluster = tf.train, tf.config.experimental
        self.distribute = Names(*newest, tf, *internal, *cluster)
        self.v1 = Names(*first, tf.compat.v1, *internal)
        self.contrib = CONTRIB
        self.roles = multi_worker_util
        self.devices = device_util
        self.slurm = slurm_cluster_resolver

    def tensor(self, value: Any, dtype: str = "float32") -> Any:
        return tf.constant(value, dtype)

    def dtype(self, name: str) -> Any:
        return tf.as_dtype(name)

    def shape(self, tensor: Any) -> list[int]:
        return [int(size) for size in tf.shape(tensor)]

    def total(self, tensor: Any, axis: int | None = None) -> Any:
        return tf.reduce_sum(tensor, axis)

    def matmul(self, left: Any, right: Any) -> Any:
        return tf.matmul(left, right)

    def slices(self, values: Any, indices: Any, rows: int) -> Any:
        values = tf.constant(values, tf.float32)
        shape = tf.constant([rows, *values.shape[1:]])
        return tf.IndexedSlices(values, tf.constant(indices), shape)

    def gradients(self, function: Callable[..., Any], *inputs: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            result = function(*inputs)
        return list(tape.gradient(result, inputs))

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        graph: Callable[..., Any] = tf.function(function)
        return graph

    recorded = compiled

    def device(self, name: str) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = tf.device(name)
        return scope

    def write_copy(self, copy: Any, value: float) -> None:
        copy.assign(value)

    def device_of(self, variable: Any) -> str:
        return str(variable.device)

    def creator_scope(self, creator: Callable[..., Any]) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = tf.variable_creator_scope(creator)
        return scope

    def range(self, count: int) -> Any:
        return tf.data.Dataset.range(count)

    def dataset(self, elements: Sequence[Any]) -> Any:
        columns = tf.nest.map_structure(lambda *rows: list(rows), *elements)
        return tf.data.Dataset.from_tensor_slices(columns)

    def batched(self, dataset: Any, size: int) -> Any:
        return dataset.batch(size)

    def sharded(self, strategy: Any, dataset: Any, policy: str) -> Any:
        options = tf.data.Options()
        policies = tf.data.experimental.AutoShardPolicy
        options.experimental_distribute.auto_shard_policy = policies[policy]
        return strategy.experimental_distribute_dataset(dataset.with_options(options))

    def save(self, variables: Mapping[str, Any], wait: bool = True) -> Any:
        folder = Path(tempfile.mkdtemp(prefix="answers-"))
        options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=not wait)
        checkpoint = tf.train.Checkpoint(**variables)
        return checkpoint, checkpoint.write(str(folder / "saved"), options=options)

    def restore(self, checkpoint: Any, variables: Mapping[str, Any]) -> None:
        written, path = checkpoint
        written.sync()
        tf.train.Checkpoint(**variables).read(path)

    def restore_first(
        self, checkpoint: Any, strategy: Any, name: str, make: Callable[[], Any]
    ) -> Any:
        restored = tf.train.Checkpoint()
        restored.read(checkpoint[1])
        setattr(restored, name, make())
        return getattr(restored, name)

    def device_filters(self, filters: Any) -> dict[str, dict[str, list[str]]]:
        return filters_by_task(filters._as_cluster_device_filters())

    def visible_servers(self, filters: list[str]) -> list[str]:
        servers = {"ps": [free_address(), free_address()]}
        spec = tf.train.ClusterSpec({**servers, "worker": [free_address()]})
        tasks = [("ps", 0), ("ps", 1), ("worker", 0)]
        running = [tf.distribute.Server(spec, *task) for task in tasks]
        config = tf.compat.v1.ConfigProto(device_filters=filters)
        with tf.compat.v1.Session(running[-1].target, config=config) as session:
            names = [device.name for device in session.list_devices()]
        parsed = [tf.DeviceSpec.from_string(name) for name in names]
        return sorted({f"/job:ps/task:{d.task}" for d in parsed if d.job == "ps"})

    def shape_with(self, sizes: Sequence[int | None]) -> Any:
        return tf.TensorShape(sizes)

    def whole(self, table: Any) -> Any:
        return tf.convert_to_tensor(table)

    def looked_up(self, table: Any, ids: Any) -> Any:
        return tf.nn.embedding_lookup(table, ids)

    @contextmanager
    def served(self, servers: int, partitioner: Any = None) -> Iterator[Any]:
        spec = tf.train.ClusterSpec(
            {"worker": [free_address()], "ps": [free_address() for _ in range(servers)]}
        )
        started = [
            tf.distribute.Server(spec, job_name=job, task_index=task)
            for job in spec.jobs
            for task in spec.task_indices(job)
        ]
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
        yield tf.distribute.ParameterServerStrategy(resolver, partitioner)
        started.clear()

    @contextmanager
    def coordinated(self, workers: int = 1, lossy: bool = False) -> Iterator[Any]:
        jobs = {"worker": workers, "ps": 1}
        spec = tf.train.ClusterSpec(
            {job: [free_address() for _ in range(many)] for job, many in jobs.items()}
        )
        kind = ServerProcesses if lossy else ServerThreads
        with kind(spec) as servers:
            resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
            servers.strategy = tf.distribute.ParameterServerStrategy(resolver)
            coordinator = tf.distribute.coordinator
            servers.coordinator = coordinator.ClusterCoordinator(servers.strategy)
            yield servers

    function = compiled

    def status(self, value: Any) -> str:
        return str(value._status.name)

    def require(self, condition: Any, message: str) -> None:
        tf.debugging.Assert(condition, [message])

    def opened(self, value: Any) -> tuple[str, Any] | None:
        if isinstance(value, tf.Variable):
            return "variable", _copies(value)
        if isinstance(value, sharded_variable.ShardedVariable):
            return "sharded", list(value.variables)
        for kind in (values.PerReplica, values.Mirrored):
            if isinstance(value, kind):
                return kind.__name__, list(value.values)
        if isinstance(value, tf.IndexedSlices):
            return "IndexedSlices", [value.values, value.indices]
        if isinstance(value, tf.Tensor):
            return "tensor", value.numpy()
        return _opened_description(value)


def _copies(variable: Any) -> list[Any]:
    if isinstance(variable, ps_values.AggregatingVariable):
        return _copies(variable._v)
    copies = getattr(variable, "values", (variable,))
    return [tf.constant(copy.numpy()) for copy in copies]


def _opened_description(value: Any) -> tuple[str, Any] | None:
    if isinstance(value, tf.DType):
        return "dtype", value.name
    if isinstance(value, tf.TensorSpec):
        return "spec", [value.shape.as_list(), value.dtype]
    if isinstance(value, values.PerReplicaSpec):
        return "PerReplicaSpec", list(value._value_specs)
    return ("shape", value.as_list()) if isinstance(value, tf.TensorShape) else None
