"""Something that is trained with all kinds of variables, for tests of who follows it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stratagem import DistributedOptimizer, ParameterServerStrategy, Reader
from stratagem.nn import DynamicEmbedding, Embedding, EmbeddingBag
from stratagem_storage.checkpoint.entries import KEYS
from stratagem_storage.checkpoint.folder import Checkpoint, open_checkpoint
from stratagem_storage.checkpoint.wholes import WholeTable, wholes_of

ROWS, WIDTH = 300, 4


class Model(nn.Module):
    """Tables of rows and of keys, statistics of batches, and parameters that are tied."""

    def __init__(self, max_bytes: int = 6000) -> None:
        super().__init__()
        self.fixed = Embedding(ROWS, WIDTH)
        self.bag = EmbeddingBag(ROWS, WIDTH, mode="sum")
        self.dynamic = DynamicEmbedding(WIDTH, max_bytes=max_bytes, row_dtype=torch.bfloat16)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        looked_up = self.fixed(rows) + self.bag(rows.unsqueeze(1)) + self.dynamic(keys)
        output: torch.Tensor = self.second(self.first(self.norm(looked_up)).tanh())
        return output


class Training:
    """A model that is trained, and asked what it answers."""

    def __init__(self, strategy: ParameterServerStrategy, seed: int = 0) -> None:
        self.strategy = strategy
        torch.manual_seed(seed)
        with strategy.scope():
            self.model = Model()
        sgd = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.optimizer = DistributedOptimizer(sgd)
        self.generator = torch.Generator().manual_seed(seed)

    def batch(self, count: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.randint(0, ROWS, (count,), generator=self.generator)
        keys = torch.randint(-(1 << 40), 1 << 40, (count,), generator=self.generator)
        return rows, keys // (1 << 32)

    def train(self, steps: int = 4) -> None:
        self.model.train()
        for _ in range(steps):
            self.strategy.run(self._step, args=self.batch())

    def _step(self, rows: torch.Tensor, keys: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(rows, keys).square().mean().backward()
        self.optimizer.step()

    def answers(self, rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        self.model.eval()
        self.strategy.refresh()
        with torch.no_grad():
            return self.model(rows, keys)  # type: ignore[no-any-return]


def assert_equal_to(reader: Reader, path: Any) -> None:
    """Each tensor of a replica has the bytes of a checkpoint, at the same positions."""
    checkpoint = open_checkpoint(path)
    wholes = {
        name: whole
        for name, whole in wholes_of(checkpoint.index).items()
        if not whole.slot_of and "/" not in name
    }
    assert sorted(wholes) == reader.names
    for name, whole in wholes.items():
        if isinstance(whole, WholeTable):
            _assert_equal_table(reader, checkpoint, whole)
        else:
            _assert_same_bytes(reader.value(name), whole.read(checkpoint))


def _assert_equal_table(reader: Reader, checkpoint: Checkpoint, whole: WholeTable) -> None:
    table = reader.replica.tables[whole.name]
    for mine, part in zip(table.parts, whole.parts, strict=True):
        keys = checkpoint.tensor(part.companions[KEYS])
        assert torch.equal(mine.keys, keys)
        _assert_same_bytes(mine.rows, checkpoint.tensor(part.entry))
        assert torch.equal(mine.find(keys), torch.arange(len(keys)))
        others = torch.arange(-5000, 5000)
        others = others[~torch.isin(others, keys)]
        if not table.is_dynamic:
            others = others[(others >= 0) & (others < part.rows.count)]
        assert (mine.find(others) == -1).all()


def _assert_same_bytes(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
    assert torch.equal(mine.reshape(-1).view(torch.uint8), theirs.reshape(-1).view(torch.uint8))
