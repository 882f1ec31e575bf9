"""What servers had when they published, against which everything is held that readers are told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from stratagem_proto.v1.publication_pb2 import PublishHeader
from stratagem_psserver.publication import Publication
from stratagem_psserver.variables.store import VariableStore
from stratagem_reader.replica import Replica
from stratagem_storage.checkpoint.entries import KEYS
from tests.simulation.world import World

_publish = Publication.publish


class Part(NamedTuple):
    """What a server had when it published a version.

    Attributes:
        cut: The cut of the version.
        tensors: Its tensors, by name; those of tables and of their keys by position.
    """

    cut: bytes
    tensors: Mapping[str, torch.Tensor]


class Truth:
    """The parts of all versions.

    Args:
        world: The run that it is part of.
        servers: How many parts a version has.

    Attributes:
        read: The versions that anybody had all of.
    """

    def __init__(self, world: World, servers: int) -> None:
        self._world, self._servers = world, servers
        self._parts: dict[tuple[int, int], Part] = {}
        self.read: set[int] = set()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is published meanwhile."""
        truth = self

        def publish(
            self: Publication,
            header: PublishHeader,
            store: VariableStore,
            tensors: Sequence[torch.Tensor],
            publisher: bytes,
        ) -> None:
            _publish(self, header, store, tensors, publisher)
            values = zip(header.values, tensors, strict=True)
            own = {spec.name: value.clone() for spec, value in values}
            found = Part(header.cut, own | dict(_stored(store)))
            truth._note(self._settings.task, header.version, found)

        with patch.object(Publication, "publish", publish):
            yield

    def _note(self, task: int, version: int, part: Part) -> None:
        # A log is replayed, and a backup does what its primary has done.
        known = self._parts.setdefault((task, version), part)
        same = known.cut == part.cut and _are_equal(known.tensors, part.tensors)
        self._world.require(same, f"version {version} of ps:{task} has two contents")

    def part(self, task: int, version: int) -> Part | None:
        """Return what a server published as a version; None if it did not."""
        return self._parts.get((task, version))

    def tensor(self, version: int, name: str) -> torch.Tensor | None:
        """Return a tensor of a version; None if no server had it."""
        parts = [self.part(task, version) for task in range(self._servers)]
        return next((part.tensors[name] for part in parts if part and name in part.tensors), None)

    def rows(self, version: int, table: str) -> dict[int, list[float]]:
        """Return the stored rows of a table that has a part on each server, by key."""
        found: dict[int, list[float]] = {}
        for task in range(self._servers):
            keys = self.tensor(version, f"{table}/part_{task}{KEYS}")
            rows = self.tensor(version, f"{table}/part_{task}")
            if keys is not None and rows is not None:
                found |= dict(zip(keys.tolist(), rows.tolist(), strict=True))
        return found

    def check_replica(self, who: str, replica: Replica, has_rows: bool = True) -> None:
        """Check that a replica has, to the bit, what all servers had when they published."""
        version = replica.version
        assert version is not None
        number, tensors = version.number, replica.tensors_by_name()
        self.read.add(number)
        expected: dict[str, torch.Tensor] = {}
        for task in range(self._servers):
            part = self.part(task, number)
            if part is None or part.cut != version.cut:
                what = "another cut" if part else "no part"
                self._require(who, number, f"ps:{task} has {what} of it")
                return
            expected |= part.tensors
        if not has_rows:
            expected = {name: value for name, value in expected.items() if "rows/" not in name}
            tensors = {name: value for name, value in tensors.items() if "rows/" not in name}
        for name in sorted(expected.keys() | tensors.keys()):
            mine, theirs = tensors.get(name), expected.get(name)
            alike = mine is not None and theirs is not None and _is_equal(mine, theirs)
            if not alike:
                self._require(who, number, f"of {name} it has {mine}, and the servers had {theirs}")

    def check_value(self, who: str, version: int, name: str, value: torch.Tensor) -> None:
        """Check what somebody was told of a variable that is no table."""
        theirs = self.tensor(version, name)
        if theirs is None or not _is_equal(value, theirs):
            self._require(who, version, f"{name} is {value}, and was {theirs}")

    def check_rows(
        self, who: str, version: int, table: str, keys: Sequence[int], rows: Any
    ) -> None:
        """Check rows that somebody has looked up, with -1 for those that are not there."""
        there = self.rows(version, table)
        for key, row in zip(keys, rows.tolist(), strict=True):
            theirs = there.get(key, [-1.0] * len(row))
            if row != theirs:
                what = "is not there" if key not in there else f"has {theirs}"
                self._require(who, version, f"key {key} is answered with {row}, and {what}")

    def _require(self, who: str, version: int, what: str) -> None:
        self._world.require(False, f"{who}, version {version}: {what}")


def _stored(store: VariableStore) -> Iterator[tuple[str, torch.Tensor]]:
    for variable in store.variables():
        if variable.spec.slot_of:
            continue
        if variable.arena is None:
            yield variable.name, variable.value.clone()
        else:
            keys = variable.arena.table.stored()[0].long()
            yield variable.name + KEYS, keys.clone()
            yield variable.name, variable.arena.storage[: len(keys)].clone()


def _are_equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(_is_equal(one[name], other[name]) for name in one)


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)
