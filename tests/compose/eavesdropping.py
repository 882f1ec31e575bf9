"""What somebody reads who listens to the network of the containers."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# From Linux's if_ether.h and if_packet.h, which Python does not name.
_ALL_PROTOCOLS = 0x0003
_SOL_PACKET, _ADD_MEMBERSHIP, _PROMISCUOUS = 263, 1, 1

_POLL_SECONDS = 0.2


class Eavesdropper:
    """Reads all frames that pass a bridge.

    Attributes:
        nbytes: How many bytes have passed.
        heard: How many frames had each of the words.
    """

    def __init__(self, bridge: str, words: Sequence[bytes]) -> None:
        self.nbytes = 0
        self.heard = Counter[bytes]()
        self._words = words
        self._enough = threading.Event()
        self._socket = socket.socket(
            socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS)
        )
        self._socket.bind((bridge, _ALL_PROTOCOLS))
        self._socket.settimeout(_POLL_SECONDS)
        # Frames that go from one container to another are not for the bridge itself.
        index = socket.if_nametoindex(bridge)
        membership = struct.pack("IHH8s", index, _PROMISCUOUS, 0, b"")
        self._socket.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, membership)

    def _listen(self) -> None:
        while not self._enough.is_set():
            try:
                frame = self._socket.recv(1 << 16)
            except TimeoutError:
                continue
            self.nbytes += len(frame)
            self.heard.update(word for word in self._words if word in frame)

    @contextmanager
    def listening(self) -> Iterator[None]:
        thread = threading.Thread(target=self._listen)
        thread.start()
        try:
            yield
        finally:
            self._enough.set()
            thread.join()
            self._socket.close()
