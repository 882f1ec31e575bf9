"""Faults of versions: in what servers publish of them, and in what readers make of that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from stratagem_proto.v1.publication_pb2 import VersionLink
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.increments import NextIncrement
from stratagem_psserver.rpcs.publication import PublicationRpcs
from stratagem_psserver.tables.table import Table
from stratagem_reader import cluster_source
from stratagem_reader.pins import Pin, Pins
from stratagem_reader.replica import Prepared, Replica
from stratagem_reader.source import Version
from stratagem_reader.tables import StoredPart
from stratagem_storage.checkpoint.parts import Content
from tests.simulation.planted.plant import Plant, replaced, strikes

_publish = Table.publish
_is_same = NextIncrement._is_same
_paths = cluster_source._paths
_commit = Replica.commit


def _forgets_some(self: Table) -> torch.Tensor | None:
    """Forget the mark of one row that has changed, now and then."""
    marks = _publish(self)
    if marks is not None and len(changed := marks.nonzero()) and strikes():
        marks[changed[0]] = 0
    return marks


def _forgets_keys(self: Table) -> torch.Tensor | None:
    """Say of no row that its key has changed."""
    marks = _publish(self)
    return None if marks is None else marks.bitwise_and(1)


def _takes_for_same(self: NextIncrement, content: Content) -> bool:
    """Leave out a dense value that has changed, now and then."""
    return _is_same(self, content) or strikes()


async def _awaits_nothing(self: PublicationRpcs, cut: bytes, session: Session) -> None:
    """Publish in the midst of what is being applied."""


def _begins_anew(
    links: Sequence[VersionLink], since: Version | None
) -> dict[tuple[int, bytes], Any]:
    """Take a whole version where an increment would do."""
    return _paths(links, None)


def _leaves_some(self: Replica, prepared: Prepared) -> None:
    """Leave out one of the changes now and then."""
    some = prepared.commits[1:] if strikes() else prepared.commits
    _commit(self, replace(prepared, commits=some))


@contextmanager
def _excludes_nobody(self: Pins) -> Iterator[None]:
    """Put a version in place while others read."""
    yield


def _never_expires(self: Pin) -> None:
    """Go on with a pin whose lease is over."""


def _finds_former(self: StoredPart, keys: torch.Tensor) -> torch.Tensor:
    """Find a row where its key has been."""
    found = self._index.find(keys, self.keys)
    return found.where(found < self.count, -1)


FAULTS: Mapping[str, Plant] = {
    "the mark of a row is forgotten": replaced(Table, "publish", _forgets_some),
    "the mark of a key is forgotten": replaced(Table, "publish", _forgets_keys),
    "a dense value is left out": replaced(NextIncrement, "_is_same", _takes_for_same),
    "a version is published in the midst": replaced(PublicationRpcs, "_await_cut", _awaits_nothing),
    "an increment is taken again from the beginning": replaced(
        cluster_source, "_paths", _begins_anew
    ),
    "a part of a version is not put in place": replaced(Replica, "commit", _leaves_some),
    "a pin holds nothing up": replaced(Pins, "excluded", _excludes_nobody),
    "a pin is never over": replaced(Pin, "require_valid", _never_expires),
    "keys are found where they were": replaced(StoredPart, "find", _finds_former),
}
