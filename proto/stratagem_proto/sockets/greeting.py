"""The greeting, in which both ends of a socket prove that they know the secret of a session.

The client sends the session and a nonce. The server answers with a nonce of its own and its proof.
The client checks the proof and answers with its own. A process that has taken over the port or the
name of a server that is gone learns neither the secret nor a proof that is valid for another
connection. The server keeps no secrets: it makes that of a session anew from one of its own.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.proofs import NONCE_BYTES, drawn_nonce
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.sockets.frames import FrameKind, SocketFrame

SECRET_BYTES = 32
PROOF_BYTES = 32

# The longest message of a HELLO.
HELLO_BYTES = NONCE_BYTES + PROOF_BYTES

_ASKING_BYTES = SESSION_ID_BYTES + NONCE_BYTES


def secret_of(session_id: bytes, run_secret: bytes, owner: bytes = b"") -> bytes:
    """Return the secret of a session with the run of a server that has drawn another one.

    Args:
        session_id: The session, whose id has one length.
        run_secret: What the run has drawn.
        owner: Who the certificate of its client names; empty without certificates.
    """
    return hmac.digest(run_secret, b"session" + session_id + owner, "sha256")


class Proofs:
    """The proofs of the two ends of one connection, which only those that know the secret can make.

    Args:
        secret: The secret of the session.
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
        secret: Returns the secret of a session, by its id; raises if there is none.

    Attributes:
        is_over: Whether the client has proved that it knows the secret of the session.
        session_id: The session that the client has named; empty before it has.
    """

    def __init__(self, secret: Callable[[bytes], bytes]) -> None:
        self.is_over, self.session_id = False, b""
        self._secret = secret
        self._proofs: Proofs | None = None

    def answer(self, frame: SocketFrame) -> bytes:
        """Return the answer to a HELLO.

        Raises:
            MalformedStreamError: It is not a HELLO, its proof is wrong, or there is no secret.
        """
        if frame.kind != FrameKind.HELLO:
            raise MalformedStreamError("a call came before the caller had proved itself")
        if self._proofs is None:
            return self._challenge(bytes(frame.message))
        if not hmac.compare_digest(frame.message, self._proofs.of_client):
            raise MalformedStreamError("its secret is not that of the session which it names")
        self.is_over = True
        return b""

    def _challenge(self, asking: bytes) -> bytes:
        if len(asking) != _ASKING_BYTES:
            raise MalformedStreamError(f"a session and a nonce have {len(asking)} bytes")
        self.session_id, asked = asking[:SESSION_ID_BYTES], asking[SESSION_ID_BYTES:]
        answered = drawn_nonce()
        self._proofs = Proofs(self._secret(self.session_id), asked, answered)
        return answered + self._proofs.of_server
