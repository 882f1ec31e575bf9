"""The HTTP server of figures, which strangers can neither fill nor hold up."""

from __future__ import annotations

import socket
import ssl
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from stratagem_rpc.sockets.closing import hang_up

if TYPE_CHECKING:
    from stratagem_rpc.certificates.folder import CertificateFolder, Certificates

# Prometheus opens one connection, or two. Each has a thread.
MOST_CONNECTIONS = 16

# Whoever sends nothing for so long is gone.
_SILENCE_SECONDS = 5.0


class ScrapeHandler(WSGIRequestHandler):
    """Answers one request, and logs nothing."""

    timeout = _SILENCE_SECONDS

    def log_message(self, *args: Any) -> None:
        """Do nothing."""


class ScrapeServer(WSGIServer):
    """Answers so many connections at once; a new one takes the place of the oldest of many."""

    # The system lets those wait for seconds for whom it has no room.
    request_queue_size = 128

    def __init__(self, host: str, port: int, certificates: CertificateFolder | None) -> None:
        """Listen.

        Args:
            host: The host to listen on.
            port: The port; 0 takes a free one.
            certificates: What to show, and by whose authority whoever asks has to be certified;
                None to answer anybody, unencrypted.

        Raises:
            OSError: The port is taken, or the host is not this machine's.
        """
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._certificates = certificates
        # From the oldest one on; all that have not been hung up on.
        self._open: dict[socket.socket, None] = {}
        self._changing = threading.Lock()
        self._accepted: SimpleQueue[tuple[socket.socket, Any] | None] = SimpleQueue()
        self._threads = 0
        super().__init__((host, port), ScrapeHandler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Return a connection. Its handshake is for its own thread."""
        accepted, address = super().get_request()
        if self._certificates is None:
            return accepted, address
        context = self.context(self._certificates.current())
        accepted.settimeout(_SILENCE_SECONDS)
        encrypted = context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        return encrypted, address

    def context(self, shown: Certificates) -> ssl.SSLContext:
        """Return the TLS of connections with these certificates."""
        from stratagem_rpc.certificates.folder import server_context

        return server_context(shown)

    def process_request(self, request: Any, client_address: Any) -> None:
        oldest = None
        with self._changing:
            self._open[request] = None
            if len(self._open) > MOST_CONNECTIONS:
                oldest = next(iter(self._open))
                # At once, and not by its thread: of many that come together each has its own place.
                del self._open[oldest]
            if self._threads < len(self._open):
                self._threads += 1
                threading.Thread(target=self._answer, name="scrapes", daemon=True).start()
        if oldest is not None:
            hang_up(oldest)
        self._accepted.put((request, client_address))

    def _answer(self) -> None:
        """Answer one connection after the other."""
        while (accepted := self._accepted.get()) is not None:
            request, client_address = accepted
            try:
                if request in self._open:
                    self.finish_request(request, client_address)
            except Exception:
                self.handle_error(request, client_address)
            finally:
                self.shutdown_request(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer whoever asks, unless his certificate counts no more."""
        if self._certificates is not None:
            request.do_handshake()
            _require_current(request.getpeercert(binary_form=True), self._certificates.current())
        super().finish_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Hang up on all, and answer nobody any more."""
        super().server_close()
        with self._changing:
            for request in self._open:
                hang_up(request)
            for _ in range(self._threads):
                self._accepted.put(None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: whoever asks may leave, or speak something else."""


def _require_current(shown: bytes | None, own: Certificates) -> None:
    """Check the certificate of whoever asks, if connections like this one show any."""
    from stratagem_rpc.certificates.folder import require_current, shown_certificate

    if shown is not None:
        require_current(shown_certificate(ssl.DER_cert_to_PEM_cert(shown).encode()), own)
