"""What a text that a user gives means as a source."""

from __future__ import annotations

import os
import re

from stratagem_reader.cluster_source import ClusterSource
from stratagem_reader.served import SERVE, ServedSource
from stratagem_reader.source import Source
from stratagem_reader.store_source import StoreSource
from stratagem_storage.checkpoint.policy import CheckpointPolicy

_ADDRESS = r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}"
_ADDRESSES = re.compile(rf"{_ADDRESS}(\s*[,|]\s*{_ADDRESS})*")


def source_at(
    place: str | os.PathLike[str],
    token: str | None = None,
    *,
    policy: CheckpointPolicy | None = None,
    is_whole: bool = False,
) -> Source:
    """Return a source.

    Args:
        place: The "host:port" of each parameter server of a cluster, in the order of their tasks
            and separated by commas, and those of replicas of a task by "|"; "serve://host:port", a
            reader server; or a folder or the URL of a store of checkpoints.
        token: The secret of the cluster; None for that of the file that STRATAGEM_TOKEN_FILE names.
        policy: What is demanded of checkpoints; None for what the environment says.
        is_whole: Whether to have the rows of a reader server's tables, too.

    Raises:
        InvalidArgumentError: It is none of these.
    """
    if isinstance(place, str) and place.startswith(SERVE):
        if not is_whole:
            return ServedSource(place, token)
        return ClusterSource([place.removeprefix(SERVE)], token)
    if isinstance(place, str) and _ADDRESSES.fullmatch(place.strip()):
        servers = [each.strip().replace("|", ",") for each in place.split(",")]
        return ClusterSource(servers, token)
    return StoreSource(place, policy)
