"""Where the servers of a cluster are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stratagem_proto.configuration.tf_config import (
    TFConfig,
    parse_tf_config,
    read_tf_config,
)
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.serving.addresses import check_address

_SERVED = ("ps", "worker")


@dataclass(frozen=True)
class Place:
    """Where a server may be.

    Attributes:
        address: Of its data plane, "host:port".
        label: The task that is meant to be there, for instance "ps:0", or "".
        optional: Whether nobody need be there: a task of the job "worker" may as well
            be a program that serves nobody.
    """

    address: str
    label: str = ""
    optional: bool = False


def places(addresses: Sequence[str], cluster: str) -> list[Place]:
    """Returns where to look for servers.

    Args:
        addresses: Given one by one; if there are any, the cluster does not count.
        cluster: A file in the form of `TF_CONFIG`; "" for the environment's.

    Raises:
        InvalidArgumentError: There is nobody to ask, or what is given is no cluster.
    """
    for address in addresses:
        check_address(address)
    found = [Place(address) for address in addresses] or _tasks(_config(cluster))
    if not found:
        raise InvalidArgumentError(
            "there is no server to ask: give HOST:PORT of each, --cluster with a file, "
            "or set TF_CONFIG"
        )
    return found


def _config(cluster: str) -> TFConfig:
    if not cluster:
        return read_tf_config()
    return parse_tf_config(Path(cluster).read_text(encoding="utf-8"), cluster)


def _tasks(config: TFConfig) -> list[Place]:
    return [
        Place(address, f"{job}:{index}", optional=job != "ps")
        for job in _SERVED
        for index, address in sorted(config.cluster.get(job, {}).items())
        if not address.endswith(":0")
    ]
