"""Records that an image may lack, for as long as it may."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import TypeAlias

from stratagem_proto.log.batches import Entry
from stratagem_proto.log.segments import Record
from stratagem_psserver.state import ServerState

# Records that no image can lack any more are looked for whenever so many more are retained, and
# after each record that is larger than this.
_PRUNED_AT = 64
_LARGE_BYTES = 1 << 20

Placed: TypeAlias = tuple[int, Entry]
"""A record and its position."""


class RetainedRecords:
    """Records of contributions to steps of a state that are not complete.

    Args:
        state: The state, to which each record is applied when it is added here, or is next.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._entries: dict[int, Entry] = {}
        self._prune_at = _PRUNED_AT

    def note(self, record: Record) -> None:
        """Retain a record that was read, if it may have contributed."""
        if record.message.HasField("mutation"):
            self.add(record.position, Entry(record.message.SerializeToString(), record.tensors))

    def add(self, position: int, entry: Entry) -> None:
        """Retain the record of a mutation."""
        self._entries[position] = entry
        if len(self._entries) >= self._prune_at or entry.nbytes > _LARGE_BYTES:
            # The one that was just applied may be needed from now on.
            needed = {*self._needed(), position}
            self._entries = {one: self._entries[one] for one in needed & self._entries.keys()}
            self._prune_at = 2 * len(self._entries) + _PRUNED_AT

    def forget(self) -> None:
        """Retain nothing any more: changes are not recorded from now on."""
        self._entries = {}

    def _needed(self) -> Iterator[int]:
        return chain(self._state.rounds.records(), self._state.kept.records())

    def find(self, positions: Collection[int]) -> Sequence[Placed] | None:
        """Return the records at some positions, in their order; None if one is not retained."""
        if not self._entries.keys() >= {*positions}:
            return None
        return [(position, self._entries[position]) for position in sorted(positions)]
