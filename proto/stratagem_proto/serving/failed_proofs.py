"""How long an address waits that has sent wrong proofs.

This module is pure: time is an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from stratagem_proto.errors import ResourceExhaustedError

# Somebody may have mixed up a file, or a program may try once more.
_FREE = 3

_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 2.0

# An address that has sent no wrong proof for this time begins anew.
_MEMORY_SECONDS = 60.0

_MOST_ADDRESSES = 4096
_MOST_WAITING = 64


@dataclass
class _Record:
    count: int = 0
    last: float = 0.0
    waiting: int = 0


class FailedProofs:
    """The wrong proofs of each address, of those that have sent one last.

    All proofs of such an address wait, right ones too: whoever could tell by the time of the answer
    would not have to wait for it. They wait side by side and not for each other, and none is looked
    at later than `_LONGEST_SECONDS` after it came: so a client is never kept out by others behind
    the same address, unless these keep all places taken. An address that is "" is not known, and
    waits never.
    """

    def __init__(self) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def failed(self, address: str, now: float) -> None:
        """Note a wrong proof."""
        if not address:
            return
        record = self._known(address, now) or _Record()
        record.count, record.last = record.count + 1, now
        self._records[address] = record
        self._records.move_to_end(address)
        while len(self._records) > _MOST_ADDRESSES:
            self._records.popitem(last=False)

    def begin(self, address: str, now: float) -> float:
        """Return how long a proof of an address waits before it is looked at; `end` follows.

        Raises:
            ResourceExhaustedError: Many of that address wait already.
        """
        record = self._known(address, now)
        if record is None or record.count < _FREE:
            return 0.0
        if record.waiting >= _MOST_WAITING:
            error = ResourceExhaustedError(
                f"{_MOST_WAITING} proofs from {address} wait to be looked at, since "
                f"{record.count} were wrong; come again later"
            )
            error.retry_seconds = _FIRST_SECONDS
            raise error
        record.waiting += 1
        return min(_FIRST_SECONDS * 2.0 ** min(record.count - _FREE, 10), _LONGEST_SECONDS)

    def end(self, address: str) -> None:
        """Note that a proof waits no more."""
        if record := self._records.get(address):
            record.waiting = max(record.waiting - 1, 0)

    def _known(self, address: str, now: float) -> _Record | None:
        record = self._records.get(address)
        return record if record and now - record.last < _MEMORY_SECONDS else None
