"""The server's side of TLS on a data port."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from stratagem_proto.errors import UnauthenticatedError
from stratagem_proto.sockets.streams import SEALED_BYTES, EncryptedStream, require_some

if TYPE_CHECKING:
    from stratagem_proto.certificates.folder import CertificateFolder
    from stratagem_proto.certificates.shown import ShownCertificate

# Nobody shows more at once.
_FLIGHT_BYTES = 16 << 10


class Encryption:
    """Shakes hands with clients, each of which has to show a certificate of the cluster.

    Public keys take time, and anybody can connect; so they are for a thread of their own, and the
    event loop answers clients meanwhile.

    Args:
        certificates: What the server shows, and whom it trusts, at each handshake.
    """

    def __init__(self, certificates: CertificateFolder) -> None:
        self._certificates = certificates
        self._thread = ThreadPoolExecutor(1, "stratagem-handshakes")
        self._room = bytearray(SEALED_BYTES)

    async def begin(self, sock: socket.socket) -> tuple[EncryptedStream, ShownCertificate]:
        """Shake hands; return the stream, and what the client has shown.

        Raises:
            OSError: It does not speak TLS, shows no certificate that an authority of this cluster
                has signed, or is gone.
            InvalidArgumentError: Its certificate does not say whose it is.
            UnauthenticatedError: Its certificate counts no more, or is of another cluster.
        """
        loop, received = asyncio.get_running_loop(), b""
        stream = await loop.run_in_executor(self._thread, self._stream, sock)
        while True:
            over, sealed = await loop.run_in_executor(self._thread, stream.step, received)
            await loop.sock_sendall(sock, sealed)
            if over:
                return stream, await loop.run_in_executor(self._thread, self._accepted, stream)
            received = await loop.sock_recv(sock, _FLIGHT_BYTES)
            require_some(len(received))

    def _stream(self, sock: socket.socket) -> EncryptedStream:
        from stratagem_proto.certificates.contexts import server_context

        return EncryptedStream(sock, server_context(self._certificates.current()), self._room)

    def _accepted(self, stream: EncryptedStream) -> ShownCertificate:
        from stratagem_proto.certificates.shown import require_current, shown_certificate

        own, shown = self._certificates.current(), shown_certificate(stream.shown)
        require_current(shown, own)
        if shown.identity.cluster != own.identity.cluster:
            raise UnauthenticatedError(
                f"the certificate of {shown.identity.label} is of the cluster "
                f"{shown.identity.cluster!r}, and this server of {own.identity.cluster!r}"
            )
        return shown

    def stop(self) -> None:
        """End the thread; nobody waits for it."""
        self._thread.shutdown(wait=False)
