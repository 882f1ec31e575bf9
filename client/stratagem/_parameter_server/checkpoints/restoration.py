"""Restoring on several servers, all or none."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress

from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.checkpoints import Wanted, restore_staged, stage_variables
from stratagem_proto.errors import AbortedError, StratagemError
from stratagem_proto.protocol import SESSION_ID_BYTES


class Restoration:
    """One checkpoint that servers restore in two phases: all read it, then all take it.

    Args:
        servers: The servers.
        path: Absolute path of the checkpoint.
        wanted: What to restore, by server.
    """

    def __init__(self, servers: ServerGroup, path: str, wanted: Mapping[int, Wanted]) -> None:
        self._servers = servers
        self._path = path
        self._wanted = wanted
        self._name = secrets.token_bytes(SESSION_ID_BYTES)

    def stage(self, seconds: float) -> None:
        """Have all servers read their part, beside what they have.

        Args:
            seconds: How long reading may take.

        Raises:
            StratagemError: A server cannot, and nothing has changed anywhere.
        """
        try:
            self._ask_to_stage(self._path, self._wanted, seconds)
        except StratagemError:
            # Servers that cannot be told forget it with the session.
            with suppress(StratagemError):
                self._ask_to_stage("", dict.fromkeys(self._wanted, Wanted()), seconds)
            raise

    def _ask_to_stage(self, path: str, wanted: Mapping[int, Wanted], seconds: float) -> None:
        self._servers.together(
            {
                server: stage_variables(self._name, path, each, seconds)
                for server, each in wanted.items()
            }
        )

    def replace(self) -> None:
        """Have all servers replace what they have by what they have read.

        Raises:
            AbortedError: A server went away after it had read its part.
        """
        try:
            self._servers.together({server: restore_staged(self._name) for server in self._wanted})
        except StratagemError as error:
            raise AbortedError(
                f"some servers may have restored {self._path!r}, but not all have: "
                f"{error.message}. Restore again before anything else"
            ) from error
