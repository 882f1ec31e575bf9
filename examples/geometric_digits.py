"""PyTorch Geometric with a table of node embeddings on parameter servers.

    stratagem run --ps 2 --workers 2 examples/geometric_digits.py
    python examples/geometric_digits.py       # the same, in this process alone

The graph has a node for each image of a digit, with edges from the images that are most like it.
GraphSAGE learns which digit a node is from vectors of nodes alone: it sees no image. A worker pulls
the vectors of the nodes that a batch has sampled, and pushes their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

import stratagem
from stratagem.cluster_resolver import ClusterResolver, TFConfigClusterResolver
from stratagem.frameworks import part

NEIGHBOURS, SAMPLED = 10, (5, 5)
DIM, RATE, BATCH, EPOCHS, HELD_OUT = 32, 0.05, 32, 12, 360


class Sampler(BaseSampler):  # type: ignore[misc] # its types are not read
    """Samples neighbours of nodes, and neighbours of these.

    PyTorch Geometric's `NeighborLoader` does so for any graph, where `pyg-lib` is installed.

    Args:
        neighbours: From which nodes each node has edges; int64 (nodes, neighbours).
        sizes: How many of them are sampled, for each hop.
    """

    def __init__(self, neighbours: Tensor, sizes: Sequence[int]) -> None:
        self._neighbours, self._sizes = neighbours, sizes

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput:
        """Returns the nodes, those asked for first, and edges between their places."""
        nodes, edges, last = index.node, [], 0
        for size in self._sizes:
            targets, last = torch.arange(last, len(nodes)), len(nodes)
            sources = self._sampled(nodes[targets], size)
            nodes = _extended(nodes, sources)
            places = torch.empty(len(self._neighbours), dtype=torch.int64)
            places[nodes] = torch.arange(len(nodes))
            edges.append(torch.stack([places[sources], targets.repeat_interleave(size)]))
        row, col = torch.cat(edges, 1)
        return SamplerOutput(nodes, row, col, None, metadata=(index.input_id, index.time))

    def _sampled(self, nodes: Tensor, size: int) -> Tensor:
        order = torch.rand(len(nodes), self._neighbours.shape[1]).argsort(1)
        return self._neighbours[nodes].gather(1, order[:, :size]).flatten()

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> SamplerOutput:
        """There are no edges to predict here."""
        raise NotImplementedError


def _extended(nodes: Tensor, others: Tensor) -> Tensor:
    new = others.unique()
    return torch.cat([nodes, new[~torch.isin(new, nodes)]])


class Sage(nn.Module):
    """Tells classes of nodes from the vectors of what was sampled around them."""

    def __init__(self, nodes: int, classes: int) -> None:
        super().__init__()
        self.vectors = stratagem.nn.Embedding(nodes, DIM)
        nn.init.uniform_(self.vectors.weight, -0.1, 0.1)
        self.first, self.second = SAGEConv(DIM, DIM), SAGEConv(DIM, classes)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        hidden = self.first(self.vectors(nodes), edges).relu()
        scores: Tensor = self.second(hidden, edges)
        return scores


def graph() -> tuple[Data, Tensor]:
    """Nodes with digits, in an order of no meaning, and the neighbours of each."""
    pixels, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    nearest = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(pixels[order])
    neighbours = torch.from_numpy(nearest.kneighbors(return_distance=False)).long()
    into = torch.arange(len(order)).repeat_interleave(NEIGHBOURS)
    edges = torch.stack([neighbours.flatten(), into])
    data = Data(edge_index=edges, y=torch.tensor(digits)[order], num_nodes=len(order))
    return data, neighbours


def update(model: Sage, optimizer: torch.optim.Optimizer, batch: Data) -> Tensor:
    """Takes a step; returns the loss."""
    scores = model(batch.n_id, batch.edge_index)[: batch.batch_size]
    loss = functional.cross_entropy(scores, batch.y[: batch.batch_size])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def accuracy(model: Sage, data: Data, neighbours: Tensor) -> float:
    """Share of the held-out nodes whose digit is told, from all their neighbours."""
    sampler = Sampler(neighbours, (NEIGHBOURS, NEIGHBOURS))
    (batch,) = NodeLoader(data, sampler, torch.arange(HELD_OUT), batch_size=HELD_OUT)
    told = model(batch.n_id, batch.edge_index)[:HELD_OUT].argmax(1)
    return float((told == batch.y[:HELD_OUT]).float().mean())


def train_plainly(seed: int = 0) -> float:
    """Trains without servers."""
    torch.manual_seed(seed)
    data, neighbours = graph()
    model = Sage(data.num_nodes, 10)
    adagrad = torch.optim.Adagrad(model.parameters(), RATE)
    nodes = torch.arange(HELD_OUT, data.num_nodes)
    loader = NodeLoader(data, Sampler(neighbours, SAMPLED), nodes, batch_size=BATCH, shuffle=True)
    fit(loader, partial(update, model, adagrad))
    return accuracy(model, data, neighbours)


def train_on_servers(resolver: ClusterResolver, seed: int = 0) -> float:
    """One worker's program, which trains on its part of the nodes."""
    torch.manual_seed(seed)
    data, neighbours = graph()
    strategy = stratagem.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = Sage(data.num_nodes, 10)
    adagrad = torch.optim.Adagrad(model.parameters(), RATE)
    optimizer = stratagem.DistributedOptimizer(adagrad)
    nodes = HELD_OUT + torch.tensor(part(strategy, TensorDataset(data.y[HELD_OUT:])).indices)
    loader = NodeLoader(data, Sampler(neighbours, SAMPLED), nodes, batch_size=BATCH, shuffle=True)
    fit(loader, lambda batch: strategy.run(update, args=(model, optimizer, batch)))
    strategy.barrier("trained")
    found: float = strategy.run(accuracy, args=(model, data, neighbours))
    strategy.barrier("tested")
    return found


def fit(loader: NodeLoader, step: Callable[[Data], Tensor]) -> None:
    """Takes a step on each batch of each epoch."""
    for _ in range(EPOCHS):
        for batch in loader:
            step(batch)


def main() -> None:
    """Trains as the worker that TF_CONFIG describes, or without servers."""
    resolver = TFConfigClusterResolver()
    train = partial(train_on_servers, resolver) if resolver.cluster_spec() else train_plainly
    found = train()
    if not resolver.task_id:
        print(f"{100 * found:.1f} % of the held-out nodes")


if __name__ == "__main__":
    main()
