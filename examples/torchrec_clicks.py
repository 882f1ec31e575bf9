"""TorchRec's DLRM, unmodified, whose tables are on parameter servers.

    stratagem run --ps 2 --workers 2 examples/torchrec_clicks.py
    python examples/torchrec_clicks.py       # the same, in this process alone

`build` and `update` are as for TorchRec alone. `train_plainly` is the program around them, and
`train_on_servers` the same program on parameter servers. The clicks are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torchrec
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional
from torchrec.models.dlrm import DLRM

import stratagem
from stratagem.cluster_resolver import ClusterResolver, TFConfigClusterResolver
from stratagem.frameworks.torchrec import EmbeddingBagCollection

if TYPE_CHECKING or __package__:
    from examples.clicks.log import COLUMNS, MEASUREMENTS, Batch, ClickLog
else:  # a script sees what lies beside it
    from clicks.log import COLUMNS, MEASUREMENTS, Batch, ClickLog

DIM, RATE, BATCH, STEPS = 8, 0.05, 256, 300
ROWS = [1000] * COLUMNS
KEYS = [f"column_{number}" for number in range(COLUMNS)]
HELD_OUT, TESTED = 2**40, 20_000
"""From here on the log's examples are not for training, and so many of them are for the test."""


def build(collection: Callable[..., nn.Module]) -> nn.Module:
    """Builds a model with embeddings of some collection."""
    tables = [
        torchrec.EmbeddingBagConfig(
            name=key, embedding_dim=DIM, num_embeddings=rows, feature_names=[key]
        )
        for key, rows in zip(KEYS, ROWS, strict=True)
    ]
    model: nn.Module = DLRM(collection(tables), MEASUREMENTS, [64, DIM], [128, 64, 1])
    return model


def features(batch: Batch) -> Any:
    """One id of each column for each example, as TorchRec has it."""
    return torchrec.KeyedJaggedTensor(
        KEYS, batch.ids.flatten(), lengths=torch.ones(batch.ids.numel(), dtype=torch.int32)
    )


def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
    """Takes a step; returns the loss."""
    logits = model(batch.dense, features(batch)).squeeze(1)
    loss = functional.binary_cross_entropy_with_logits(logits, batch.clicked)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def auc(model: nn.Module) -> float:
    """Area under the ROC curve on held-out examples."""
    batch = ClickLog(ROWS).batch(HELD_OUT, TESTED)
    return float(roc_auc_score(batch.clicked, model(batch.dense, features(batch)).squeeze(1)))


def train_plainly(seed: int = 0) -> float:
    """Trains by TorchRec alone."""
    torch.manual_seed(seed)
    model = build(torchrec.EmbeddingBagCollection)
    adagrad = torch.optim.Adagrad(model.parameters(), RATE)
    for batch in ClickLog(ROWS).batches(0, STEPS * BATCH, BATCH):
        update(model, adagrad, batch)
    return auc(model)


def train_on_servers(resolver: ClusterResolver, seed: int = 0) -> float:
    """One worker's program, which trains on its part of the same examples."""
    torch.manual_seed(seed)
    strategy = stratagem.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = build(EmbeddingBagCollection)
    adagrad = torch.optim.Adagrad(model.parameters(), RATE)
    optimizer = stratagem.DistributedOptimizer(adagrad)
    worker, workers = resolver.task_id or 0, resolver.cluster_spec().num_tasks("worker")
    mine = STEPS // workers * BATCH
    for batch in ClickLog(ROWS).batches(worker * mine, mine, BATCH):
        strategy.run(update, args=(model, optimizer, batch))
    strategy.barrier("trained")
    found: float = strategy.run(auc, args=(model,))
    strategy.barrier("tested")
    return found


def main() -> None:
    """Trains as the worker that TF_CONFIG describes, or without servers."""
    resolver = TFConfigClusterResolver()
    train = partial(train_on_servers, resolver) if resolver.cluster_spec() else train_plainly
    found = train()
    if not resolver.task_id:
        print(f"an AUC of {found:.4f} on held-out clicks")


if __name__ == "__main__":
    main()
