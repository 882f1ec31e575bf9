"""Our servers: `python -m benchmarks.crashes.ours DURABILITY`."""

from __future__ import annotations

import sys
from tempfile import TemporaryDirectory

import torch

from benchmarks.crashes.trial import UPDATES, found
from stratagem import ParameterServerStrategy, Variable
from stratagem_deploy import LocalCluster
from stratagem_psserver.settings import Durability


def main(durability: Durability) -> None:
    """Add to a variable, kill the server, and tell what is there."""
    with (
        TemporaryDirectory(dir="runs/benchmarks") as folder,
        LocalCluster(
            1,
            0,
            processes=True,
            durability=durability,
            durability_folder=None if durability == "none" else folder,
        ) as cluster,
        ParameterServerStrategy(cluster.cluster_resolver) as strategy,
    ):
        with strategy.scope():
            count = Variable(torch.tensor(0.0), trainable=False)
        for _ in range(UPDATES):
            count.assign_add(1.0)
        cluster.kill("ps", 0)
        cluster.restart("ps", 0)
        found(lambda: count.assign_add(1.0), lambda: float(count.numpy())).tell()


if __name__ == "__main__":
    main(sys.argv[1])  # type: ignore[arg-type]
