"""The checks of a server when a client opens a session."""

from __future__ import annotations

import hmac

from stratagem_proto.errors import UnauthenticatedError
from stratagem_proto.protocol import check_version
from stratagem_proto.serving.settings import ServingSettings
from stratagem_proto.v1.session_pb2 import OpenSessionRequest


def check_handshake(request: OpenSessionRequest, settings: ServingSettings) -> None:
    """Check that a client speaks a known version of the contract and has the cluster's token.

    Raises:
        ProtocolVersionError: Its version is not known.
        UnauthenticatedError: It does not have the token.
    """
    check_version(request.protocol_version)
    given, expected = request.cluster_token.encode(), settings.token.encode()
    if not hmac.compare_digest(given, expected):
        shown = "a wrong" if given else "no"
        raise UnauthenticatedError(
            f"{settings.label} was shown {shown} cluster token; give client and server "
            "the same file, by STRATAGEM_TOKEN_FILE or --token-file, or the same token="
        )
