"""Checkpoints of a click model, looked at on other numbers of servers."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

import stratagem
from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_deploy.checkpoints.inspection import differences
from stratagem_storage.checkpoint.folder import open_checkpoint

from .log import Batch
from .training import Trainer


def require_equal(folder: Path, servers: tuple[int, ...], batch: Batch) -> None:
    """Check that a checkpoint is the same wherever it is restored.

    It is saved once more from each number of servers, which must give the same rows, values and
    optimizer's state, X
    Raises:
        SystemExit: Something differs.
    """
    # A process that is a task of a cluster may start no other one.
    os.environ.pop("TF_CONFIG", None)
    answers = []
    for count in servers:
        again = folder.with_name(f"{folder.name}-{count}")
        with LocalCluster(ps=count) as cluster:
            answers += cluster.run(_answer, folder, again, batch)
        for one in differences(open_checkpoint(folder), open_checkpoint(again)):
            raise SystemExit(f"on {count} servers {one.name} differs: {one.what}")
    if any(not torch.equal(answers[0], other) for other in answers):
        raise SystemExit("restored models differ in what they answer")


def _answer(resolver: ClusterResolver, folder: Path, again: Path, batch: Batch) -> Tensor:
    """What a restored model says of some examples; it is saved anew."""
    with stratagem.ParameterServerStrategy(resolver) as strategy:
        trainer = Trainer(strategy, torch.device("cpu"))
        strategy.restore(folder).assert_consumed()
        strategy.save(again)
        return trainer.chances(batch)
