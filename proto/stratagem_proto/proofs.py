"""Proofs that somebody knows the secret of a cluster, which is never sent.

All are HMAC-SHA256 under the secret. Each kind begins with words of its own and each part with its
length, so that what proves one thing proves nothing else.
"""

from __future__ import annotations

import hmac
import secrets
from functools import lru_cache

from stratagem_proto.v1.handshake_pb2 import ChallengeResponse
from stratagem_proto.v1.session_pb2 import OpenSessionRequest

NONCE_BYTES = 32

CREDENTIAL_BYTES = 16


def new_nonce() -> bytes:
    """Return a new nonce."""
    return secrets.token_bytes(NONCE_BYTES)


def proof_of_server(token: str, nonce: bytes, answer: ChallengeResponse) -> bytes:
    """Return what proves to a client that the server knows the secret.

    Args:
        token: The secret.
        nonce: The nonce of the client.
        answer: What else the server answers.
    """
    told = ChallengeResponse()
    told.CopyFrom(answer)
    told.ClearField("proof")
    content = told.SerializeToString(deterministic=True)
    return _mac(token, b"stratagem server", nonce, content)


def proof_of_client(token: str, method: str, asking: OpenSessionRequest) -> bytes:
    """Return what proves to a server that whoever asks knows the secret.

    Args:
        token: The secret.
        method: The name of the RPC without its service.
        asking: What is asked with; its nonce and its challenge are there already.
    """
    told = OpenSessionRequest()
    told.CopyFrom(asking)
    told.proof.ClearField("mac")
    content = told.SerializeToString(deterministic=True)
    return _mac(token, b"stratagem client", method.encode(), content)


@lru_cache(maxsize=4096)
def credential_of(session_id: bytes, token: str) -> bytes:
    """Return what requests show to act for a session; empty without a token.

    Its owner and the server make it of what they know; nobody else can.
    """
    return _mac(token, b"stratagem session", session_id)[:CREDENTIAL_BYTES] if token else b""


def signature_of_checkpoint(key: str, content: bytes) -> bytes:
    """Return what proves that somebody with a key has written the index of a checkpoint.

    Args:
        key: The key of checkpoints, which may be the secret of the cluster.
        content: What the index says, as bytes.
    """
    return _mac(key, b"stratagem checkpoint", content)


def _mac(token: str, *parts: bytes) -> bytes:
    text = b"".join(_number(len(part)) + part for part in parts)
    return hmac.digest(token.encode(), text, "sha256")


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big")
