"""TorchRec's `EmbeddingBagCollection` and `EmbeddingCollection`, with tables on parameter servers.

Needs the package `torchrec`: `pip install 'stratagem[torchrec]'`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from stratagem._parameter_server.tables.parameter import TableParameter
from stratagem._parameter_server.tables.recording import current_recorder
from stratagem._parameter_server.tables.variable import prefetch
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError

try:
    import torchrec
    from torchrec.sparse.tensor_dict import maybe_td_to_kjt
    from torchrec.types import DataType
except ImportError as error:
    raise ImportError(
        "TorchRec must be installed, with an fbgemm-gpu that is built for this torch, before its "
        "collections have tables on parameter servers: run `pip install 'stratagem[torchrec]'`; "
        "docs/guide/frameworks.md says how on a machine without GPUs"
    ) from error

__all__ = ["EmbeddingBagCollection", "EmbeddingCollection"]


class EmbeddingBagCollection(torchrec.EmbeddingBagCollection):  # type: ignore[misc] # its types are not read
    """A `torchrec.EmbeddingBagCollection` whose rows are pulled when they are looked up.

    It takes a `KeyedJaggedTensor` and returns a `KeyedTensor`, with the numbers of TorchRec's own.
    In the scope of a `ParameterServerStrategy` with a cluster the tables are on the servers, and
    within `strategy.run` one request of each server pulls the rows of all of them. Tables of more
    than `scope(meta_above=...)` bytes are never in this process. Elsewhere it is TorchRec's own
    with sparse gradients. Names in `state_dict()` are the same everywhere.

    Args:
        tables: Their configurations, as TorchRec's `EmbeddingBagConfig`.
        is_weighted: Whether ids have weights. Their bags are sums then.
        device: Of tables that are built in no scope; those on servers take none.

    Raises:
        InvalidArgumentError: A configuration asks for what tables on servers have not.
        ValueError: As of TorchRec: names are repeated, or bags are not pooled.
    """

    def __init__(
        self,
        tables: Sequence[Any],
        is_weighted: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        for config in tables:
            _require_supported(config, is_weighted)
        super().__init__([*tables], is_weighted, _device(device))
        _have_sparse_gradients(self.embedding_bags)

    def forward(self, features: Any) -> Any:
        """Return the pooled rows of each feature.

        Args:
            features: A `KeyedJaggedTensor`, or a `TensorDict` of jagged tensors.

        Returns:
            A `KeyedTensor` of float32 (batch, sum of the features' `embedding_dim`).

        Raises:
            RowIndexError: There is no such row.
            FailedPreconditionError: An optimizer was applied in the backward of a table on servers.
        """
        features = maybe_td_to_kjt(features, None)
        _pull(self.embedding_bags, self.embedding_bag_configs(), features)
        return super().forward(features)


class EmbeddingCollection(torchrec.EmbeddingCollection):  # type: ignore[misc] # its types are not read
    """A `torchrec.EmbeddingCollection`, whose rows are not pooled: for sequences of ids.

    Where its tables are, and when rows are pulled, is as for `EmbeddingBagCollection`.

    Args:
        tables: Their configurations, as TorchRec's `EmbeddingConfig`, of one `embedding_dim`.
        device: Of tables that are built in no scope; those on servers take none.
        need_indices: Whether ids are returned with the rows, as weights.

    Raises:
        InvalidArgumentError: A configuration asks for what tables on servers have not.
        ValueError: As of TorchRec: names are repeated, or dimensions differ.
    """

    def __init__(
        self,
        tables: Sequence[Any],
        device: torch.device | str | None = None,
        need_indices: bool = False,
    ) -> None:
        for config in tables:
            _require_supported(config)
        super().__init__([*tables], _device(device), need_indices)
        _have_sparse_gradients(self.embeddings)

    def forward(self, features: Any) -> Any:
        """Return the row of each id of each feature.

        Args:
            features: A `KeyedJaggedTensor`, or a `TensorDict` of jagged tensors.

        Returns:
            A dictionary of a `JaggedTensor` for each feature, whose values are float32
            (ids of the feature, `embedding_dim`).

        Raises:
            RowIndexError: There is no such row.
            FailedPreconditionError: An optimizer was applied in the backward of a table on servers.
        """
        features = maybe_td_to_kjt(features, None)
        _pull(self.embeddings, self.embedding_configs(), features)
        return super().forward(features)


def _have_sparse_gradients(tables: Mapping[str, Any]) -> None:
    for table in tables.values():
        table.sparse = True


def _pull(tables: Mapping[str, Any], configs: Iterable[Any], features: Any) -> None:
    """Pull the rows of all features from all servers at once."""
    for name, table in tables.items():
        _require_no_step_in_backward(name, table.weight)
    prefetch(_lookups(tables, configs, features.to_dict()))


def _lookups(
    tables: Mapping[str, Any], configs: Iterable[Any], features: Mapping[str, Any]
) -> Iterator[tuple[nn.Module, torch.Tensor]]:
    for config in configs:
        for name in config.feature_names:
            yield tables[config.name], features[name].values()


_REFUSED = {
    "use_virtual_table": "use stratagem.nn.DynamicEmbedding, which has rows for any int64 keys",
    "num_embeddings_post_pruning": "leave it out, since no ids are mapped to fewer rows",
    "enable_embedding_update": "leave it out, and write rows by an optimizer or an assignment",
}
"""Fields of configurations that TorchRec's own collection ignores unless it is sharded."""


def _require_supported(config: Any, is_weighted: bool = False) -> None:
    if config.data_type is not DataType.FP32:
        # TorchRec makes float16 of all others, whose sparse gradients torch does not add up.
        raise _refusal(config, f"data_type={config.data_type}", "it has to be FP32")
    if is_weighted and config.pooling is not torchrec.PoolingType.SUM:
        raise _refusal(config, f"{config.pooling} of weighted ids", "torch has weighted sums alone")
    for field, instead in _REFUSED.items():
        if getattr(config, field, None):
            raise _refusal(config, f"{field}={getattr(config, field)}", instead)


def _refusal(config: Any, what: str, instead: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"table {config.name!r} has {what}, which no table on parameter servers has; {instead}"
    )


def _require_no_step_in_backward(name: str, weight: torch.Tensor) -> None:
    # Its hook waits for a gradient of the whole table, which never comes.
    if isinstance(weight, TableParameter) and hasattr(weight, "_in_backward_optimizers"):
        raise FailedPreconditionError(
            f"an optimizer was applied in the backward of table {name!r}, which is on parameter "
            "servers; leave apply_optimizer_in_backward out, and step all parameters by a "
            "stratagem.DistributedOptimizer"
        )


def _device(given: torch.device | str | None) -> torch.device:
    """Return where memory is allocated, which tables of a scope have for their first values only.

    TorchRec asks the first table for it if none is given, and that one may have no memory.
    """
    if given is None or current_recorder() is not None:
        return torch.device("cpu")
    return torch.device(given)
