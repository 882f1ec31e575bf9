"""Looking rows up in a table as it was at a mark."""

from __future__ import annotations

from functools import cached_property

import torch

from stratagem_psserver.tables.arena import Found
from stratagem_psserver.tables.key_index import KeyIndex
from stratagem_psserver.tables.mark import TableMark


class MarkedKeys:
    """Where the rows of a table were.

    Args:
        mark: The rows.

    Attributes:
        mark: The rows.
    """

    def __init__(self, mark: TableMark) -> None:
        self.mark = mark

    def find(self, keys: torch.Tensor) -> Found:
        """Where keys were stored; they may repeat."""
        return Found(keys, self._index.find(keys))

    @cached_property
    def _index(self) -> KeyIndex:
        # The table's own has moved on; and most tables are not looked into.
        return KeyIndex.of(self.mark.keys())
