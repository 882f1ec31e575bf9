"""Relays that know nothing of what they carry, and cut it at any byte."""

from __future__ import annotations

import os
import random
import secrets
import socket
import threading
import time
from contextlib import suppress

from typing_extensions import Self

from tests.faults import Direction

_CRAWL_BYTES = 1 << 10
_CRAWL_SECONDS = 0.02

_MOST_DESCRIPTORS = 8


class Relay:
    """Forwards connections to a port of this host.

    Attributes:
        port: Where it listens.
        crawling: The way on which 50 KiB pass in a second; None for neither.
        cuts: Number of connections that were cut.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = self._listen()
        self.crawling: Direction | None = None
        self.cuts = 0
        self._cutting: tuple[Direction, int] | None = None
        self._chance: tuple[random.Random, int] | None = None
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._passing = threading.Event()
        self._passing.set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut_after(self, direction: Direction, nbytes: int) -> None:
        """Lets so many more bytes pass that way, and then cuts what they came by."""
        with self._lock:
            self._cutting = direction, nbytes

    def cut_at_random(self, chance: random.Random, most: int) -> None:
        """Cuts again and again, each time after so many bytes at most, either way."""
        with self._lock:
            self._chance = chance, most
            self._draw()

    def let_pass(self) -> None:
        """Cuts no more."""
        with self._lock:
            self._chance = self._cutting = None

    def hold(self) -> None:
        """Holds all that comes from now on, either way, as a host that is stopped or cut off."""
        self._passing.clear()

    def release(self) -> None:
        """Lets pass what was held."""
        self._passing.set()

    def _draw(self) -> None:
        self._cutting = None
        if self._chance is not None:
            chance, most = self._chance
            self._cutting = chance.choice([*Direction]), chance.randrange(most)

    def break_off(self) -> None:
        """Cuts all connections; later ones pass."""
        with self._lock:
            ends, self._ends = self._ends, []
        self.cuts += len(ends) // 2
        for end in ends:
            _close(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        _close(self._listener)
        self._thread.join()
        for end in self._ends:
            _close(end)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = self._connect()
                self._ends += [client, server]
                self._forward(client, server, Direction.TO_SERVER)
                self._forward(server, client, Direction.TO_CLIENT)

    def _forward(self, source: socket.socket, sink: socket.socket, direction: Direction) -> None:
        ends = source, sink, direction
        threading.Thread(target=self._pass_all, args=ends, daemon=True).start()

    def _pass_all(self, source: socket.socket, sink: socket.socket, direction: Direction) -> None:
        with suppress(OSError):
            while data := self._receive(source, sink):
                allowed = self._allowed(direction, len(data))
                self._pass(sink, data[:allowed], direction)
                if allowed < len(data):
                    break
        # Of a host that is cut off, nobody hears either that it has closed its connections.
        self._passing.wait()
        _close(source)
        _close(sink)

    def _pass(self, sink: socket.socket, data: bytes, direction: Direction) -> None:
        self._passing.wait()
        if self.crawling is not direction:
            return sink.sendall(data)
        for at in range(0, len(data), _CRAWL_BYTES):
            sink.sendall(data[at : at + _CRAWL_BYTES])
            time.sleep(_CRAWL_SECONDS)

    def _allowed(self, direction: Direction, nbytes: int) -> int:
        with self._lock:
            if self._cutting is None or self._cutting[0] is not direction:
                return nbytes
            left = self._cutting[1]
            if left >= nbytes:
                self._cutting = direction, left - nbytes
                return nbytes
            self._draw()
            self.cuts += 1
            return left

    def _listen(self) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        return listener

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._target))

    def _receive(self, source: socket.socket, sink: socket.socket) -> bytes:
        """Takes what has come."""
        return source.recv(1 << 16)


class UnixRelay(Relay):
    """A relay between names of this host, which passes descriptors on, too.

    Attributes:
        name: Where it listens.
    """

    def __init__(self, target: bytes) -> None:
        self._name = target
        super().__init__(0)

    def _listen(self) -> socket.socket:
        self.name = secrets.token_hex(16).encode()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(b"\0" + self.name)
        listener.listen()
        return listener

    def _connect(self) -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        server.connect(b"\0" + self._name)
        return server

    def _receive(self, source: socket.socket, sink: socket.socket) -> bytes:
        data, descriptors, _, _ = socket.recv_fds(source, 1 << 16, _MOST_DESCRIPTORS)
        if not descriptors:
            return data
        # They come with the first byte of what they were sent with.
        socket.send_fds(sink, [data[:1]], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return data[1:] or self._receive(source, sink)


def _close(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
