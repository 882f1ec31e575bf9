"""The greeting, in which both ends of a socket prove that they know the server's secret.

The client sends a nonce. The server answers with a nonce of its own and its proof. The client
checks the proof and answers with its own. A process that has taken over the port or the name of a
server that is gone learns neither the secret nor a proof that is valid for another connection.
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
    """Return a new nonce."""
    return secrets.token_bytes(NONCE_BYTES)


class Proofs:
    """The proofs of the two ends of one connection, which only those that know the secret can make.

    Args:
        secret: The server's secret.
        asked: The client's nonce.
        answered: The server's nonce.

    Attributes:
        of_server: The server's proof.
        of_client: The client's proof. It differs from the server's, so that an attacker cannot
            send either end's own proof back to it.
    """

    def __init__(self, secret: bytes, asked: bytes, answered: bytes) -> None:
        nonces = asked + answered
        self.of_server = hmac.digest(secret, b"server" + nonces, "sha256")
        self.of_client = hmac.digest(secret, b"client" + nonces, "sha256")


class Greeting:
    """The server's side of the greeting, without a socket and without a clock.

    Args:
        secret: The secret that the client must know.

    Attributes:
        is_over: Whether the client has proved that it knows the secret.
    """

    def __init__(self, secret: bytes) -> None:
        self.is_over = False
        self._secret = secret
        self._proofs: Proofs | None = None

    def answer(self, frame: SocketFrame) -> bytes:
        """Return the answer to a HELLO.

        Raises:
            MalformedStreamError: The frame is not a HELLO, or its proof is wrong.
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
