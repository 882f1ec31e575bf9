"""Addresses of this machine that are chosen before anything listens on them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack

from typing_extensions import Self

_LOOPBACK = "127.0.0.1"


class ReservedAddress:
    """A free address, kept from everybody else until it is closed, as by a block.

    A socket is bound to it and never listens, so the one server that this address is meant for can
    still bind it, and bind it again after a restart, while the kernel gives it neither to another
    server nor to an outgoing connection.
    """

    def __init__(self, host: str = _LOOPBACK) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        self._text = "{}:{}".format(*self._socket.getsockname())

    def __str__(self) -> str:
        return self._text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()


class ReservedAddresses:
    """The free addresses of the replicas of one task, kept until they are closed.

    Attributes:
        replicas: The address of each; of most tasks one.
    """

    def __init__(self, count: int = 1) -> None:
        with ExitStack() as stack:
            reserved = [stack.enter_context(ReservedAddress()) for _ in range(count)]
            self._closing = stack.pop_all()
        self.replicas: Sequence[str] = [str(each) for each in reserved]

    def __str__(self) -> str:
        return ",".join(self.replicas)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        self._closing.close()
