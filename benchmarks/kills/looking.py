"""A reader, which goes on where the one before was killed.

Usage: python -m benchmarks.kills.looking FOLDER SOURCE. The folder gets what it has seen, and what
was wrong with that.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from stratagem import Reader, StratagemError
from stratagem.nn import DynamicEmbedding, Embedding

ROWS, _IDLE, _LOOKED_BACK = 64, 8, 60
SEEN, FAULTS = "seen.json", "faults"
_SECONDS, _PAUSE_SECONDS = 300.0, 0.02


class Model(nn.Module):
    """Each step gives all numbers its own, and the row of a new key.

    Rows of a part that some writes have not touched are evicted, and no step writes them again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.dense = Embedding(ROWS, 2), nn.Linear(3, 3, bias=False)
        self.numbers = DynamicEmbedding(1, max_idle=_IDLE)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, number: int) -> torch.Tensor:
        """Return what is least, and one step away, where all have a number."""
        values = (self.rows(torch.arange(ROWS)), self.dense.weight, self.numbers(_key(number)))
        return torch.stack([(each - number).square().sum() / 2 for each in values]).sum()

    def last(self) -> int:
        """Return the greatest number that anything has, also of a step that was cut off."""
        with torch.no_grad():
            return int(max(self.rows(torch.arange(ROWS)).max(), self.dense.weight.max()))


def _key(number: int) -> torch.Tensor:
    return torch.tensor([number])


class Looker:
    """Looks at versions, and notes what is wrong.

    Args:
        folder: Where it notes that.
        source: What it follows.
    """

    def __init__(self, folder: Path, source: str) -> None:
        self._folder = folder
        self._seen, self._step = 0, 0
        self._gone: set[int] = set()
        if (seen := folder / SEEN).exists():
            known = json.loads(seen.read_text())
            self._seen, self._step, self._gone = known["version"], known["step"], {*known["gone"]}
        self._reader = Reader(source, timeout=_SECONDS)

    def look(self) -> None:
        """Look at a version."""
        try:
            with self._reader.pin() as version:
                rows = self._reader.lookup("rows.weight", torch.arange(ROWS))
                dense = self._reader.value("dense.weight")
                number = int(dense[0, 0])
                keys = torch.arange(max(1, number - _LOOKED_BACK), number + 2)
                numbers = self._reader.lookup("numbers.weight", keys, default=-1.0).flatten()
        except StratagemError:
            return
        if not ((dense == number).all() and (rows == number).all()):
            self._note(version, f"has numbers {dense.unique().tolist()}, {rows.unique().tolist()}")
        if version < self._seen or number < self._step:
            self._note(version, f"has step {number}, after {self._seen} with {self._step}")
        for key, found in zip(keys.tolist(), numbers.tolist(), strict=True):
            self._look_at(version, number, key, int(found))
        self._seen, self._step = version, number
        self._gone = {key for key in self._gone if key >= number - _LOOKED_BACK}
        self._keep()

    def _look_at(self, version: int, number: int, key: int, found: int) -> None:
        if found not in (key, -1) or (key > number and found != -1):
            self._note(version, f"has {found} for key {key} after step {number}")
        if found == -1 and key <= number:
            self._gone.add(key)
        elif found != -1 and key in self._gone:
            self._note(version, f"answers for key {key}, which was deleted before")

    def _note(self, version: int, what: str) -> None:
        with (self._folder / FAULTS).open("a") as file:
            file.write(f"{self._folder.name}: version {version} {what}\n")

    def _keep(self) -> None:
        known = {"version": self._seen, "step": self._step, "gone": sorted(self._gone)}
        new = self._folder / f"{SEEN}.new"
        new.write_text(json.dumps(known))
        os.replace(new, self._folder / SEEN)


def main() -> None:
    """Look again and again."""
    looker = Looker(Path(sys.argv[1]), sys.argv[2])
    while True:
        looker.look()
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main()
