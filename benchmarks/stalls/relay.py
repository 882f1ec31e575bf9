"""A link between two processes that can be cut in either direction."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_BYTES = 1 << 16


class Relay:
    """Passes bytes between those who connect to it and a server.

    Attributes:
        server: The "host:port" of the server, to be set before anybody connects.
        address: The "host:port" to connect to.
        there: Set while bytes pass to the server.
        back: Set while bytes pass from it.
    """

    def __init__(self) -> None:
        self.server = ""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: set[socket.socket] = set()
        self.there, self.back = threading.Event(), threading.Event()
        self.there.set()
        self.back.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._connect(self._listener.accept()[0])

    def _connect(self, client: socket.socket) -> None:
        """Connect a client with the server, or hang up if that does not run."""
        host, _, port = self.server.rpartition(":")
        try:
            server = socket.create_connection((host, int(port)))
        except OSError:
            client.close()
            return
        threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        """Pass bytes both ways until both have ended."""
        self._sockets |= {client, server}
        way = (server, client, self.back)
        back = threading.Thread(target=_pass, args=way, daemon=True)
        back.start()
        _pass(client, server, self.there)
        back.join()
        for each in (client, server):
            each.close()
            self._sockets.discard(each)

    @contextmanager
    def cut(self, direction: threading.Event) -> Iterator[None]:
        """Let nothing pass in a direction while the body runs: `there` or `back`."""
        direction.clear()
        try:
            yield
        finally:
            direction.set()

    def close(self) -> None:
        """Accept nobody any more, and end all connections."""
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _pass(source: socket.socket, target: socket.socket, passes: threading.Event) -> None:
    with suppress(OSError):
        while data := source.recv(_BYTES):
            passes.wait()
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
