"""The addresses of a task's replicas, which a cluster lists as one text."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem_proto.errors import InvalidArgumentError


def replica_addresses(task: str, address: str) -> Sequence[str]:
    """Return the address of each replica of a task; most tasks have one.

    Args:
        task: The task, as in "/job:ps/task:0".
        address: Its "host:port", or those of its replicas with commas between them.

    Raises:
        InvalidArgumentError: One is empty, or there twice.
    """
    addresses = [part.strip() for part in address.split(",")]
    if "," in address and not all(addresses):
        raise InvalidArgumentError(
            f"the addresses of {task} are {address!r}, of which one is empty; write those of its "
            "replicas as 'host:port,host:port'"
        )
    if len(set(addresses)) < len(addresses):
        raise InvalidArgumentError(
            f"the addresses of {task} are {address!r}, of which two are the same; each replica "
            "listens at an address of its own"
        )
    return addresses


def require_one_address(task: str, address: str) -> None:
    """Raise InvalidArgumentError if replicas are listed of a task that cannot have any."""
    if "," in address:
        raise InvalidArgumentError(
            f"the address of {task} is {address!r}, but only tasks of the job ps have replicas; "
            "give one 'host:port'"
        )
