"""Who has made the call that is being answered.

Calls are answered each in a context of its own, so that whatever answers one need not pass on whose
it is.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from stratagem_proto.errors import PermissionDeniedError, SessionLostError
from stratagem_proto.proofs import CREDENTIAL_BYTES, credential_of
from stratagem_proto.protocol import SESSION_ID_BYTES, digest_of, session_name
from stratagem_proto.serving.settings import ServingSettings

_PRESENT: ContextVar[Any] = ContextVar("stratagem_call", default=None)
_ADMISSION: ContextVar[Callable[[], None] | None] = ContextVar("stratagem_admission", default=None)

# What a host of IPv6 is commonly given to choose its addresses from.
_PREFIX = 64


def arrived(call: object) -> None:
    """Answer a call by gRPC or over a socket from now on."""
    _PRESENT.set(call)


def present_call() -> object:
    """Return the present call, as gRPC or a socket gives it; None if the server itself acts."""
    return _PRESENT.get()


def on_admission(note: Callable[[], None]) -> None:
    """Have a function called once the present call has shown that it is of the cluster."""
    _ADMISSION.set(note)


def admitted() -> None:
    """Note that the present call has shown that it is of the cluster."""
    if note := _ADMISSION.get():
        note()


def present_address() -> str:
    """Return where the present call by gRPC comes from, without a port; "" of other calls."""
    peer = getattr(_PRESENT.get(), "peer", None)
    return host_of(peer()) if peer else ""


def claimed(shown: bytes, settings: ServingSettings) -> bytes:
    """Return the name of the session that the present call may act for.

    Args:
        shown: The id of the session and its credential, as in a request; `reached_in` is what may
            follow them.
        settings: Those of the server.

    Raises:
        SessionLostError: It shows nothing.
        PermissionDeniedError: It may not act for the session, whether or not there is one.
    """
    if not shown:
        raise SessionLostError("the request has no session id; open a session first")
    session_id = shown[:SESSION_ID_BYTES]
    credential = shown[SESSION_ID_BYTES : _end_of_credential(settings)]
    require_socket_of(session_id, settings)
    if not hmac.compare_digest(credential, credential_of(session_id, settings.token)):
        raise PermissionDeniedError(
            f"{settings.label} got a call for session {digest_of(session_id)} without the "
            "credential of that session; its id alone opens nothing. Only the program that has "
            "opened the session can use it: open another one"
        )
    admitted()
    return session_name(session_id)


def reached_in(shown: bytes, settings: ServingSettings) -> bytes:
    """Return what the server has told the client of a call last, as in the message `Reached`.

    Args:
        shown: What the request shows.
        settings: Those of the server.
    """
    return shown[_end_of_credential(settings) :]


def _end_of_credential(settings: ServingSettings) -> int:
    return SESSION_ID_BYTES + (CREDENTIAL_BYTES if settings.token else 0)


def require_socket_of(session_id: bytes, settings: ServingSettings) -> None:
    """Check that a session is that of the present call's socket, if it comes over a socket.

    Raises:
        PermissionDeniedError: It is another one.
    """
    mine: bytes = getattr(_PRESENT.get(), "session_id", session_id)
    if mine != session_id:
        raise PermissionDeniedError(
            f"{settings.label} got a call for session {digest_of(session_id)} over a socket of "
            f"session {digest_of(mine)}, which may act for that session alone; open a socket for "
            "each session"
        )


def host_of(peer: str) -> str:
    """Return the host of a peer as gRPC names it, for instance "ipv4:10.0.0.1:2222"."""
    scheme, _, address = peer.partition(":")
    if scheme != "ipv6":
        return address.rpartition(":")[0]
    host = address.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
    try:
        return str(ipaddress.ip_network(f"{host.partition('%')[0]}/{_PREFIX}", strict=False))
    except ValueError:
        return host
