"""What all kinds of servers have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from benchmarks.chaos.roles import Role
from benchmarks.chaos.strikes import Kind
from stratagem_deploy.clusters.servers import RestartableServer


class TaskServers(Protocol):
    """The servers of the job ps."""

    @property
    def addresses(self) -> Sequence[str]:
        """Where its tasks are, as in `TF_CONFIG`."""

    @property
    def servers(self) -> Sequence[RestartableServer]:
        """Those that are started together, and stopped in the end."""

    @property
    def roles(self) -> Sequence[Role]:
        """Who can be hurt."""

    @property
    def kinds(self) -> Sequence[Kind]:
        """What else can happen to them."""

    @property
    def missing(self) -> list[str]:
        """The names of processes that do not run, and should."""

    def wrong(self) -> list[str]:
        """Return what is wrong with them in the end, for people."""

    def versions(self) -> Mapping[str, int]:
        """Return the versions of all variables."""
