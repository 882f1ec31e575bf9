"""Why the two ends of a connection have not agreed on certificates, from what gRPC says of it."""

from __future__ import annotations

# What gRPC and its library for TLS say, and what it means to the client. Nothing of it changes by
# itself.
_MEANINGS = {
    "Hostname Verification Check failed": "what answers there shows the certificate of another "
    "task or cluster; check its address, and its certificate by `stratagem certs show`",
    "CERTIFICATE_VERIFY_FAILED": "what answers there shows a certificate that is not valid now, or "
    "that no authority in ca.crt of this process has signed; check both ends by `stratagem certs "
    "show`",
    "WRONG_VERSION_NUMBER": "what answers there does not encrypt, and this process shows "
    "certificates; start the server with --tls, or leave STRATAGEM_TLS out",
}

# A server tells nobody why it refuses a certificate, or who shows none.
_HUNG_UP = "failed to connect to all addresses", "Socket closed"
_HINT = (
    "; if the server has certificates (--tls), it hangs up on whoever shows none or one that its "
    "authority has not signed: check STRATAGEM_TLS of this process"
)


def failed_handshake(details: str) -> str:
    """Return what is wrong with the certificates of a connection; "" if nothing is, as far known.

    Args:
        details: What gRPC says of the connection that has failed.
    """
    found = (meaning for words, meaning in _MEANINGS.items() if words in details)
    return next(found, "")


def hinted(details: str) -> str:
    """Return what gRPC says of a connection, with a hint where a certificate may be the reason."""
    hint = _HINT if all(words in details for words in _HUNG_UP) else ""
    return details + hint
