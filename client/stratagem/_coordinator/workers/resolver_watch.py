"""Letting workers join and leave as a resolver says."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.errors import AlreadyExistsError, InvalidArgumentError

_LOG = logging.getLogger("stratagem")


class Members(Protocol):
    """The workers that a resolver's are compared with."""

    def add(self, index: int, address: str, *, late: bool) -> None:
        """Let a worker join; raise `AlreadyExistsError` if its index is taken."""

    def remove(self, index: int) -> None:
        """Let a worker leave; raise `InvalidArgumentError` if there is none."""


def workers_of(resolver: ClusterResolver) -> dict[int, str]:
    """Return the addresses of the workers that a resolver knows now, by index."""
    cluster = resolver.cluster_spec()
    indices = cluster.task_indices("worker") if "worker" in cluster.jobs else []
    return {index: cluster.task_address("worker", index) for index in indices}


class ResolverWatch:
    """Carries out what changes in a resolver, and nothing else.

    A worker that joined or left otherwise stays in or out. One whose address is another leaves, and
    the one that is there joins.

    Args:
        resolver: The resolver.
        members: The workers that join and leave.
        known: The workers that it knew at first, which have joined.
    """

    def __init__(
        self, resolver: ClusterResolver, members: Members, known: Mapping[int, str]
    ) -> None:
        self._resolver = resolver
        self._members = members
        self._known = dict(known)
        self._fails = False

    def look(self) -> None:
        """Look at the resolver once.

        A worker joins by a later look if the one that had its index has not left yet.

        Raises:
            CancelledError: The members take no changes any more.
        """
        now = self._now()
        for index in [one for one in self._known if self._known[one] != now.get(one)]:
            del self._known[index]
            self._remove(index)
        for index in now.keys() - self._known.keys():
            self._add(index, now[index])

    def _now(self) -> Mapping[int, str]:
        """Return the resolver's workers, or those of before if it fails, as it may."""
        try:
            found = workers_of(self._resolver)
        except Exception as error:
            if not self._fails:
                _LOG.warning("the workers stay as they are: %s", error)
            self._fails = True
            return self._known
        self._fails = False
        return found

    def _remove(self, index: int) -> None:
        # The program may have been first.
        with suppress(InvalidArgumentError):
            self._members.remove(index)

    def _add(self, index: int, address: str) -> None:
        try:
            self._members.add(index, address, late=True)
        except AlreadyExistsError:
            return
        self._known[index] = address
