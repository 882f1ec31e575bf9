"""Scenarios' library as Stratagem provides it."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, Dataset

import stratagem
from stratagem._cluster import tasks
from stratagem._core import contexts, device_names, distributed_values
from stratagem._core.variable_creation import creator_scope
from stratagem._input.rounds import LeafSpec, PerReplicaSpec
from stratagem.cluster_resolver import _slurm
from tests.client.clusters import running
from tests.client.coordinator.coordination import Coordination, coordinating
from tests.differential.library import Names, filters_by_task

# For how long a server may be away that is lost.
_AWAY_SECONDS = 1.0


class Stratagem:
    """`Library` by Stratagem.

    Args:
        folder: Where checkpoints are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.distribute = self.v1 = Names(
            stratagem, stratagem.experimental, distributed_values, contexts
        )
        self.contrib: Any = stratagem.contrib
        self.roles: Any = tasks
        self.devices: Any = device_names
        self.slurm: Any = _slurm

    def tensor(self, value: Any, dtype: str = "float32") -> Any:
        return torch.tensor(value, dtype=self.dtype(dtype))

    def dtype(self, name: str) -> Any:
        return getattr(torch, name)

    def shape(self, tensor: Any) -> list[int]:
        return list(tensor.shape)

    def total(self, tensor: Any, axis: int | None = None) -> Any:
        return torch.sum(tensor) if axis is None else torch.sum(tensor, axis)

    def matmul(self, left: Any, right: Any) -> Any:
        return torch.matmul(left, right)

    def slices(self, values: Any, indices: Any, rows: int) -> Any:
        values = torch.tensor(values, dtype=torch.float32)
        shape = [rows, *values.shape[1:]]
        return stratagem.IndexedSlices(values, torch.tensor(indices), shape)

    def gradients(self, function: Callable[..., Any], *inputs: Any) -> list[Any]:
        leaves = [value.detach().clone().requires_grad_() for value in inputs]
        result = function(*leaves)
        return list(torch.autograd.grad(result.sum(), leaves, allow_unused=True))

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # Not for speed, so without the C++ compiler that the default needs.
        return torch.compile(function, backend="eager")

    def recorded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: torch.jit.trace(function, args)(*args)

    def device(self, name: str) -> AbstractContextManager[Any]:
        return stratagem.device(name)

    def write_copy(self, copy: Any, value: float) -> None:
        copy.value().detach().fill_(value)

    def device_of(self, variable: Any) -> str:
        return str(variable.device_name)

    def creator_scope(self, creator: Callable[..., Any]) -> AbstractContextManager[Any]:
        return creator_scope(creator)

    def range(self, count: int) -> Any:
        return Elements([torch.tensor(number) for number in range(count)])

    def dataset(self, elements: Sequence[Any]) -> Any:
        tensors = torch.utils._pytree.tree_map(torch.as_tensor, list(elements))
        return Elements(tensors)

    def batched(self, dataset: Any, size: int) -> Any:
        return DataLoader(dataset, batch_size=size)

    def sharded(self, strategy: Any, dataset: Any, policy: str) -> Any:
        return strategy.experimental_distribute_dataset(
            dataset, auto_shard_policy=stratagem.AutoShardPolicy[policy]
        )

    def save(self, variables: Mapping[str, Any], wait: bool = True) -> Any:
        path = Path(tempfile.mkdtemp(dir=self._folder)) / "checkpoint.safetensors"
        owners = {_strategy_of(each) for each in variables.values()}
        for owner in owners - {None}:
            return path, owner.save(path, wait)
        plain = {name: v.read_value().detach() for name, v in variables.items()}
        save_file(plain, path)
        return path, None

    def restore(self, checkpoint: Any, variables: Mapping[str, Any]) -> None:
        path, written = checkpoint
        if written is not None:
            written.result()
        for name, variable in variables.items():
            owner = _strategy_of(variable)
            if owner is None:
                variable.assign(load_file(path)[name])
            else:
                owner.restore(path)

    def restore_first(
        self, checkpoint: Any, strategy: Any, name: str, make: Callable[[], Any]
    ) -> Any:
        strategy.restore(checkpoint[0])
        return make()

    def device_filters(self, filters: Any) -> dict[str, dict[str, list[str]]]:
        return filters_by_task(filters.as_message())

    def visible_servers(self, filters: list[str]) -> list[str]:
        spec = stratagem.ClusterSpec({"ps": ["p:1", "p:2"], "worker": ["w:1"]})
        resolver = stratagem.cluster_resolver.SimpleClusterResolver(
            spec, task_type="worker", task_id=0
        )
        strategy = stratagem.ParameterServerStrategy(
            resolver, session_config=stratagem.ConfigProto(device_filters=filters)
        )
        return list(strategy.extended.parameter_devices)

    def shape_with(self, sizes: Sequence[int | None]) -> Any:
        return tuple(sizes)

    def whole(self, table: Any) -> Any:
        return table.read_value()

    def looked_up(self, table: Any, ids: Any) -> Any:
        return torch.nn.functional.embedding(torch.tensor(ids), table)

    @contextmanager
    def served(self, servers: int, partitioner: Any = None) -> Iterator[Any]:
        with (
            running(servers) as cluster,
            cluster.strategy(variable_partitioner=partitioner) as strategy,
        ):
            yield strategy

    def coordinated(self, workers: int = 1, lossy: bool = False) -> AbstractContextManager[Any]:
        return _coordinated(workers)

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def status(self, value: Any) -> str:
        return str(value.status.name)

    def require(self, condition: Any, message: str) -> None:
        if not condition:
            raise stratagem.InvalidArgumentError(message)

    def __reduce__(self) -> Any:
        # Functions that workers run use it.
        return Stratagem, (self._folder,)

    def opened(self, value: Any) -> tuple[str, Any] | None:
        if isinstance(value, stratagem.Variable):
            return "variable", [copy.value().detach() for copy in value.values]
        if isinstance(value, stratagem.ShardedVariable):
            return "sharded", value.variables
        for kind in (stratagem.PerReplica, stratagem.Mirrored):
            if isinstance(value, kind):
                return kind.__name__, list(value.values)
        if isinstance(value, stratagem.IndexedSlices):
            return "IndexedSlices", [value.values, value.indices]
        if isinstance(value, torch.Tensor):
            return "tensor", value.detach().numpy()
        return _opened_description(value)


@contextmanager
def _coordinated(workers: int) -> Iterator[Any]:
    with coordinating(workers, connect_seconds=_AWAY_SECONDS) as coordination:
        yield _Coordinated(coordination)


class _Coordinated:
    def __init__(self, coordination: Coordination) -> None:
        self.strategy = coordination.strategy
        self.coordinator = coordination.coordinator
        self.lose_worker = coordination.stop
        self.return_worker = coordination.start
        self.lose_server = partial(coordination.stop_server, 0)


def _strategy_of(variable: Any) -> Any:
    if isinstance(variable, stratagem.ShardedVariable):
        return variable.variables[0].distribute_strategy
    return variable.distribute_strategy


def _opened_description(value: Any) -> tuple[str, Any] | None:
    if isinstance(value, torch.dtype):
        return "dtype", str(value).removeprefix("torch.")
    if isinstance(value, LeafSpec):
        return "spec", [list(value.shape or ()), value.dtype]
    if isinstance(value, PerReplicaSpec):
        return "PerReplicaSpec", list(value.specs)
    return None


class Elements(Dataset[Any]):
    """A map-style dataset with the methods of `tf.data` that scenarios use."""

    def __init__(self, elements: Sequence[Any], shuffled: bool = False) -> None:
        self._elements = elements
        self._shuffled = shuffled

    def __len__(self) -> int:
        return len(self._elements)

    def __getitem__(self, index: int) -> Any:
        return self._elements[index]

    def shuffle(self, buffer_size: int) -> Elements:
        return Elements(self._elements, shuffled=buffer_size > 1)

    def batch(self, size: int, drop_remainder: bool = False) -> Batches:
        return Batches(self, batch_size=size, drop_last=drop_remainder, shuffle=self._shuffled)


class Batches(DataLoader[Any]):
    """A loader with the methods of `tf.data` that scenarios use."""

    def cache(self) -> list[Any]:
        return list(self)

    def repeat(self) -> Callable[[], Iterator[Any]]:
        return lambda: itertools.chain.from_iterable(itertools.repeat(self))
