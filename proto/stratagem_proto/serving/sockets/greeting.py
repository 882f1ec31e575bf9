"""What a stranger must say to be served."""

from __future__ import annotations

import hmac

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.wire.sockets.frames import Frame, Kind
from stratagem_proto.wire.sockets.proofs import NONCE_BYTES, Proofs, drawn_nonce


class Greeting:
    """The server's part of the proofs; no socket, and no clock.

    Args:
        secret: That the client must know.

    Attributes:
        is_over: Whether the client has proved that.
    """

    def __init__(self, secret: bytes) -> None:
        self.is_over = False
        self._secret = secret
        self._proofs: Proofs | None = None

    def answer(self, frame: Frame) -> bytes:
        """Returns what to say to a HELLO.

        Raises:
            MalformedStreamError: It is none, or proves nothing.
        """
        if frame.kind != Kind.HELLO:
            raise MalformedStreamError("a call came before who calls was known")
        if self._proofs is None:
            return self._challenge(bytes(frame.message))
        if not hmac.compare_digest(frame.message, self._proofs.of_client):
            raise MalformedStreamError("its secret is not the server's")
        self.is_over = True
        return b""

    def _challenge(self, asked: bytes) -> bytes:
        if len(asked) != NONCE_BYTES:
            raise MalformedStreamError(f"a nonce has {len(asked)} bytes")
        answered = drawn_nonce()
        self._proofs = Proofs(self._secret, asked, answered)
        return answered + self._proofs.of_server
