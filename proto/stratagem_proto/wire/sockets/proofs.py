"""How the ends of a socket prove to each other that they know the server's secret.

The client begins with a nonce. The server answers it with a nonce of its own and its
proof; the client, which believes it now, answers with its proof and is let in. Whoever
has taken a port or a name of a server that is gone learns neither the secret nor
anything that would be believed elsewhere.
"""

from __future__ import annotations

import hmac
import secrets

SECRET_BYTES = 32
NONCE_BYTES = 32
PROOF_BYTES = 32

# The longest message of a HELLO.
HELLO_BYTES = NONCE_BYTES + PROOF_BYTES


def drawn_nonce() -> bytes:
    """Bytes that nobody has proved anything about."""
    return secrets.token_bytes(NONCE_BYTES)


class Proofs:
    """What the two ends of one connection say.

    Args:
        secret: Of the server.
        asked: The client's nonce.
        answered: The server's nonce.

    Attributes:
        of_server: What only who knows the secret can answer the client.
        of_client: What only who knows the secret can answer the server; another one, so
            that neither can be shown its own.
    """

    def __init__(self, secret: bytes, asked: bytes, answered: bytes) -> None:
        nonces = asked + answered
        self.of_server = hmac.digest(secret, b"server" + nonces, "sha256")
        self.of_client = hmac.digest(secret, b"client" + nonces, "sha256")
