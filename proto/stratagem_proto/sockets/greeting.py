"""How the ends of a socket prove to each other that they know the server's secret.

The client begins with a nonce. The server answers it with a nonce of its own and its proof; the
client, which believes it now, answers with its proof and is let in. Whoever has taken a port or a
name of a server that is gone learns neither the secret nor anything that would be believed
elsewhere.
"""

from __future__ import annotations

import hmac
import secrets

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.sockets.frames import FrameKind, SocketFrame

SECRET_BYTES = 32
NONCE_BYTES = 32
PROOF_BYTES = 32

# The longest message of a HELLO.
HELLO_BYTES = NONCE_BYTES + PROOF_BYTES


def drawn_nonce() -> bytes:
    """Return random bytes that nobody has proved anything about."""
    return secrets.token_bytes(NONCE_BYTES)


class Proofs:
    """What the two ends of one connection say.

    Args:
        secret: Of the server.
        asked: The client's nonce.
        answered: The server's nonce.

    Attributes:
        of_server: What only who knows the secret can answer the client.
        of_client: What only who knows the secret can answer the server; another one, so that
            neither can be shown its own.
    """

    def __init__(self, secret: bytes, asked: bytes, answered: bytes) -> None:
        nonces = asked + answered
        self.of_server = hmac.digest(secret, b"server" + nonces, "sha256")
        self.of_client = hmac.digest(secret, b"client" + nonces, "sha256")


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

    def answer(self, frame: SocketFrame) -> bytes:
        """Return what to say to a HELLO.

        Raises:
            MalformedStreamError: It is none, or proves nothing.
        """
        if frame.kind != FrameKind.HELLO:
            raise MalformedStreamError("a call came before the caller had proved itself")
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
