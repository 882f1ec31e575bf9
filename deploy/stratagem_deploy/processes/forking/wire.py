"""What a fork server and the process that uses it tell each other, over Unix sockets."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!i")
_DESCRIPTORS = 3

ENDED = 0
"""What is told of a process that has ended and is not reaped yet, or asked for when it may be."""


@dataclass(frozen=True)
class Order:
    """A process to be forked.

    Attributes:
        arguments: Arguments of its program.
        environment: All of its environment.
        folder: The folder that it works in.
        import_path: Where it imports from.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    import_path: Sequence[str]

    def send(self, channel: socket.socket, descriptors: Sequence[int]) -> None:
        """Send it.

        Args:
            channel: Where orders go.
            descriptors: Its standard output, its standard error, and a socket that tells first its
                id, then that it has ended, and when asked for, how.
        """
        content = json.dumps(asdict(self)).encode()
        socket.send_fds(channel, [_LENGTH.pack(len(content))], descriptors)
        channel.sendall(content)


def next_order(channel: socket.socket) -> tuple[Order, Sequence[int]] | None:
    """Return the next order and its descriptors, or None if there will be no more."""
    head, descriptors, _, _ = socket.recv_fds(channel, _LENGTH.size, _DESCRIPTORS)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    content = channel.recv(length, socket.MSG_WAITALL)
    return Order(**json.loads(content)), descriptors


def tell(other: socket.socket, number: int) -> None:
    """Send a number."""
    other.sendall(_NUMBER.pack(number))


def heard(other: socket.socket) -> int | None:
    """Wait for a number and return it, or None if the other end is gone."""
    data = other.recv(_NUMBER.size, socket.MSG_WAITALL)
    return int(*_NUMBER.unpack(data)) if len(data) == _NUMBER.size else None
