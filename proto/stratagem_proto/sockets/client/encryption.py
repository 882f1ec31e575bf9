"""The client's side of TLS on a data port."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from stratagem_proto.certificates.identity import server_name
from stratagem_proto.sockets.streams import SEALED_BYTES, EncryptedStream, require_some
from stratagem_proto.wire.channel import Expected

if TYPE_CHECKING:
    from stratagem_proto.certificates.folder import CertificateFolder

# Nobody shows more at once.
_FLIGHT_BYTES = 16 << 10

# A connection that exists looks for another certificate of its process no more often, since that
# takes as long as it does to encrypt a small request.
_LOOK_SECONDS = 0.1


class CertifiedStream(EncryptedStream):
    """An encrypted stream to a server that has shown the certificate of the task that is meant.

    Args:
        sock: A connected socket.
        certificates: What this process shows, and whom it trusts.
        expected: Who has to be there.
        deadline: When the handshake has to be over, in seconds of `time.monotonic`.

    Raises:
        OSError: Somebody else is there, does not accept what this process shows, or takes too long.
    """

    def __init__(
        self,
        sock: socket.socket,
        certificates: CertificateFolder,
        expected: Expected,
        deadline: float,
    ) -> None:
        from stratagem_proto.certificates.contexts import client_context

        self._certificates, self._own = certificates, certificates.current()
        self._looked, self._is_former = time.monotonic(), False
        name = server_name(self._own.identity.cluster, *expected)
        super().__init__(sock, client_context(self._own), bytearray(SEALED_BYTES), name)
        self._shake_hands(deadline)

    def _shake_hands(self, deadline: float) -> None:
        received = b""
        while True:
            over, sealed = self.step(received)
            # Before each system call, so that a handshake that comes byte by byte can be late, too.
            self._socket.settimeout(_left(deadline))
            self._socket.sendall(sealed)
            if over:
                return
            received = self._socket.recv(_FLIGHT_BYTES)
            require_some(len(received))

    @property
    def is_worn(self) -> bool:
        """Whether this process shows another certificate by now, or the key was used for long."""
        if (now := time.monotonic()) >= self._looked + _LOOK_SECONDS:
            self._looked = now
            self._is_former = self._certificates.current() is not self._own
        return self._is_former or super().is_worn


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time for the handshake is over")
    return left
