"""Following a reader server for everything but the rows of tables, which are looked up there."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.wire.tensors import as_bytes
from stratagem_reader.cluster_source import ClusterSource
from stratagem_reader.lookup_client import LookupClient, Wanted
from stratagem_reader.tables import ReplicaTable

# Servers behind one address come to a version at about the same time.
_BEHIND_SECONDS = 5.0

_TRIES = 10


SERVE = "serve://"
"""What the address of a reader server begins with."""


class ServedSource(ClusterSource):
    """A reader server as a `Source` that leaves out the rows of tables.

    Args:
        address: "serve://host:port".
        token: As of `ClusterSource`.

    Attributes:
        rows: Looks up what is left out.
    """

    def __init__(self, address: str, token: str | None = None) -> None:
        plain = address.removeprefix(SERVE)
        self.rows = ServedRows(LookupClient(plain, token))
        super().__init__([plain], token, without_rows=True)
        self.name = address

    def close(self) -> None:
        """As of `Source`."""
        super().close()
        self.rows.close()


class ServedRows:
    """The rows of tables at a reader server. Thread-safe.

    A reader that pins a version has the server keep it meanwhile, as far as the server grants that.

    Args:
        client: Asks the server.
    """

    def __init__(self, client: LookupClient) -> None:
        self._client = client
        self._pins = 0
        # Of several servers behind one address, none is to answer of an older version.
        self._seen = 0
        self._changing = threading.Lock()

    def agree(self, pinned: int, seconds: float, wait_for: Callable[[int], object]) -> int:
        """Have the server keep a version for a pin that is to begin; `release` follows.

        Args:
            pinned: The version that is here.
            seconds: For how long.
            wait_for: Waits until a version is here.

        Returns:
            The version that is kept.
        """
        with self._changing:
            self._pins += 1
        try:
            for _ in range(_TRIES):
                answer = self._client.look_up(
                    [], min_version=pinned, wait=_BEHIND_SECONDS, hold=seconds
                )
                if answer.version <= pinned:
                    break
                wait_for(answer.version)
                pinned = answer.version
            return pinned
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let the server go on, if no other pin holds it."""
        with self._changing:
            self._pins -= 1
            is_last = not self._pins
        if is_last:
            self._client.let_go()

    def look_up(
        self,
        table: ReplicaTable,
        keys: torch.Tensor,
        default: torch.Tensor | float | None,
        version: int | None,
        lease: float,
    ) -> torch.Tensor:
        """Return rows.

        Args:
            table: Their table, as it is here: without rows.
            keys: An int64 vector.
            default: As of `Follower.lookup`.
            version: The version that they have to be of; None for the present one.
            lease: For how many seconds more that is pinned.

        Raises:
            VersionExpiredError: The server has gone on from that version.
        """
        wanted = [Wanted(table.name, keys, _missing(table, default))]
        if version is None:
            answer = self._client.look_up(wanted, min_version=self._seen, wait=_BEHIND_SECONDS)
        else:
            answer = self._client.look_up(wanted, version=version, hold=lease)
        with self._changing:
            self._seen = max(self._seen, answer.version)
        return answer.rows[0]

    def close(self) -> None:
        """End its connections."""
        self._client.close()


def _missing(table: ReplicaTable, default: torch.Tensor | float | None) -> bytes:
    if default is None:
        return b""
    value = torch.as_tensor(default, dtype=table.dtype)
    if value.shape not in {(), torch.Size(table.row_shape)}:
        raise InvalidArgumentError(
            f"default has shape {tuple(value.shape)}, and rows of {table.name!r} have "
            f"{table.row_shape}; pass a number or one such row",
            variable=table.name,
        )
    return bytes(as_bytes(value))
