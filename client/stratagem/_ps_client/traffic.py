"""Counting what crosses the wire."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """Bytes of messages that this process and servers have exchanged.

    Those of repeated requests count each time; what gRPC, HTTP/2 and TCP add does not.

    Attributes:
        sent_bytes: To servers. To parameter servers: gradients, and values that were written. To
            workers: functions, and what they need.
        received_bytes: From servers. From parameter servers: values that were read. From workers:
            what functions returned, wrote and logged.
    """

    __module__ = "stratagem"

    sent_bytes: int = 0
    received_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.sent_bytes + other.sent_bytes, self.received_bytes + other.received_bytes
        )

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.sent_bytes - other.sent_bytes, self.received_bytes - other.received_bytes
        )


class TrafficMeter:
    """Counts messages as they pass. Thread-safe."""

    def __init__(self) -> None:
        self._sent = self._received = 0
        self._lock = threading.Lock()

    @property
    def total(self) -> Traffic:
        """All that has passed so far."""
        with self._lock:
            return Traffic(self._sent, self._received)

    def sending(self, messages: Iterable[bytes], placed: int = 0) -> Iterator[bytes]:
        """Yield the same messages, counted with the bytes that the first names in shared memory."""
        for message in messages:
            self.sent(len(message) + placed)
            placed = 0
            yield message

    def sent(self, nbytes: int) -> None:
        """Take note of a message to a server."""
        with self._lock:
            self._sent += nbytes

    def received(self, nbytes: int) -> None:
        """Take note of a message from a server."""
        with self._lock:
            self._received += nbytes
