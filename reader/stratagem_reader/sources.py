"""What a text that a user gives means as a source, a reader server among others."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TypeAlias, cast

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_reader.cluster_source import ClusterSource
from stratagem_reader.lookup_client import LookupClient, ServedRows
from stratagem_reader.source import Source
from stratagem_reader.store_source import StoreSource
from stratagem_storage.checkpoint.policy import CheckpointPolicy

_ADDRESS = r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}"
_ADDRESSES = re.compile(rf"{_ADDRESS}(\s*[,|]\s*{_ADDRESS})*")

SERVE = "serve://"
"""What the address of a reader server begins with."""

AnySource: TypeAlias = str | os.PathLike[str] | Sequence[str] | Source
"""What means a source."""


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


def source_at(
    place: AnySource,
    token: str | None = None,
    *,
    policy: CheckpointPolicy | None = None,
    is_whole: bool = False,
) -> Source:
    """Return a source.

    Args:
        place: The "host:port" of each parameter server of a cluster, in the order of their tasks,
            in a list, with commas between those of replicas of a task; or in a text, with commas
            between tasks and "|" between replicas. Or "serve://host:port", a reader server; or a
            folder or the URL of a store of checkpoints; or a source.
        token: The secret of the cluster; None for that of the file that STRATAGEM_TOKEN_FILE names.
        policy: What is demanded of checkpoints; None for what the environment says.
        is_whole: Whether to have the rows of a reader server's tables, too.

    Raises:
        InvalidArgumentError: It is a list of other things, or is none of these.
        InvalidTypeError: It is something else.
    """
    if callable(getattr(place, "chains", None)):
        return cast("Source", place)
    if isinstance(place, str) and place.startswith(SERVE):
        server = place.removeprefix(SERVE)
        return ClusterSource([server], token) if is_whole else ServedSource(place, token)
    if isinstance(place, str) and _ADDRESSES.fullmatch(place.strip()):
        servers = [each.strip().replace("|", ",") for each in place.split(",")]
        return ClusterSource(servers, token)
    if isinstance(place, str | os.PathLike):
        return StoreSource(place, policy)
    return ClusterSource(_require_addresses(place), token)


def _require_addresses(place: object) -> Sequence[str]:
    if not isinstance(place, Sequence) or not all(isinstance(one, str) for one in place):
        raise InvalidTypeError(
            f"source is {place!r:.80}; pass a folder or a URL that strategy.save() writes to, or "
            "the 'host:port' of each server in a list"
        )
    if not all(map(_ADDRESSES.fullmatch, place)):
        raise InvalidArgumentError(
            f"{' '.join(place)} are several sources; give the host:port of each server of one "
            "cluster, or one folder or URL"
        )
    return place
