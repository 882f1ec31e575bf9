"""Who has made the call that is being answered, and whether its certificate agrees."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING

from stratagem_proto.errors import PermissionDeniedError, SessionLostError
from stratagem_proto.proofs import CREDENTIAL_BYTES, credential_of
from stratagem_proto.protocol import SESSION_ID_BYTES, digest_of, session_name
from stratagem_proto.v1.session_pb2 import (
    ROLE_CHIEF,
    ROLE_COORDINATOR,
    ROLE_EVALUATOR,
    ROLE_OBSERVER,
    ROLE_OPERATOR,
    ROLE_READER,
    ROLE_SERVER,
    ROLE_WORKER,
    OpenSessionRequest,
    Role,
    Task,
)
from stratagem_rpc.certificates.identity import CertifiedIdentity
from stratagem_rpc.server_call import ServerCall
from stratagem_rpc.serving.access import name_of
from stratagem_rpc.serving.settings import ServingSettings

if TYPE_CHECKING:
    from stratagem_rpc.certificates.folder import ShownCertificate

# Calls are answered each in a context of its own, so that whatever answers one need not pass on
# whose it is.

_PRESENT: ContextVar[ServerCall | None] = ContextVar("stratagem_call", default=None)
_ADMISSION: ContextVar[Callable[[], None] | None] = ContextVar("stratagem_admission", default=None)


def enter_call(call: ServerCall) -> None:
    """Answer a call from now on."""
    _PRESENT.set(call)


def on_admission(note: Callable[[], None]) -> None:
    """Have a function called once the present call has shown that it is of the cluster."""
    _ADMISSION.set(note)


def note_admission() -> None:
    """Note that the present call has shown that it is of the cluster."""
    if note := _ADMISSION.get():
        note()


def present_address() -> str:
    """Return where the present call by gRPC comes from, without a port; "" of other calls."""
    call = _PRESENT.get()
    return call.address if call else ""


def verify_caller(shown: bytes, settings: ServingSettings) -> bytes:
    """Return the name of the session that the present call may act for.

    Args:
        shown: The id of the session and its credential, as in a request. What the server has told
            the client last may follow, as in the message `Reached`.
        settings: Those of the server.

    Raises:
        SessionLostError: It shows nothing.
        PermissionDeniedError: It may not act for the session, whether or not there is one.
    """
    if not shown:
        raise SessionLostError("the request has no session id; open a session first")
    session_id = shown[:SESSION_ID_BYTES]
    credential = shown[SESSION_ID_BYTES : end_of_credential(settings)]
    require_socket_of(session_id, settings)
    if not hmac.compare_digest(credential, credential_of(session_id, settings.token)):
        raise PermissionDeniedError(
            f"{settings.label} got a call for session {digest_of(session_id)} without the "
            "credential of that session; its id alone opens nothing. Only the program that has "
            "opened the session can use it: open another one"
        )
    if note := _ADMISSION.get():
        note()
    return session_name(session_id)


def end_of_credential(settings: ServingSettings) -> int:
    """Return how many bytes a request shows of a session's id and credential."""
    return SESSION_ID_BYTES + (CREDENTIAL_BYTES if settings.token else 0)


def require_socket_of(session_id: bytes, settings: ServingSettings) -> None:
    """Check that a session is that of the present call's socket, if it comes over a socket.

    Raises:
        PermissionDeniedError: It is another one.
    """
    call = _PRESENT.get()
    mine = call.session_id if call else b""
    if mine and mine != session_id:
        raise PermissionDeniedError(
            f"{settings.label} got a call for session {digest_of(session_id)} over a socket of "
            f"session {digest_of(mine)}, which may act for that session alone; open a socket for "
            "each session"
        )


_LEADS = frozenset({ROLE_CHIEF, ROLE_COORDINATOR, ROLE_OPERATOR, ROLE_OBSERVER})

# What a process may call itself, by the role in its certificate. Who creates variables is the chief
# to parameter servers, and to worker servers the coordinator. Everybody may look.
_ROLES: Mapping[str, frozenset[Role]] = {
    "chief": _LEADS,
    "coordinator": _LEADS,
    "worker": frozenset({ROLE_WORKER, ROLE_OBSERVER}),
    "evaluator": frozenset({ROLE_EVALUATOR, ROLE_OBSERVER}),
    "operator": frozenset({ROLE_OPERATOR, ROLE_OBSERVER}),
    "server": frozenset({ROLE_SERVER, ROLE_OBSERVER}),
    "observer": frozenset({ROLE_OBSERVER}),
    # Nobody else, since a policy may say less of a reader than of them.
    "reader": frozenset({ROLE_READER, ROLE_OBSERVER}),
}


# Whose sessions with parameter servers also have filters and policies of their tasks. Who leads has
# sessions of no task, too, while it waits for its turn.
_LED = frozenset({ROLE_WORKER, ROLE_EVALUATOR})


def certificate_of_caller(settings: ServingSettings) -> ShownCertificate | None:
    """Return what the present call has shown; None on a server without certificates."""
    call = _PRESENT.get()
    return None if settings.tls is None or call is None else call.certificate


def require_certified_handshake(
    asking: OpenSessionRequest, method: str, settings: ServingSettings
) -> None:
    """Check that a handshake comes from whom it says; raise as `require_certified`.

    A worker or evaluator that opens a session has to say which task it is.

    Args:
        asking: The handshake.
        method: The name of the RPC without its service.
        settings: The settings of the server.
    """
    shown = require_certified(asking.role, asking.task, settings)
    is_led = method == "OpenSession" and asking.role in _LED
    if is_led and shown is not None and shown.job and not asking.task.job:
        raise _denied(settings, shown, "no task", "name that task in TF_CONFIG or the resolver")


def require_certified(
    role: Role, task: Task, settings: ServingSettings
) -> CertifiedIdentity | None:
    """Check that the present call comes from whom it says that it comes from.

    A Unix socket acts for one session alone; its calls count as having shown what the call has
    shown that opened the session.

    Args:
        role: What the caller says that it is to the cluster.
        task: The task that it says it is; without a job, it says of none.
        settings: The settings of the server, which has certificates.

    Returns:
        Whose certificate it has shown; None if it has shown none.

    Raises:
        UnauthenticatedError: The certificate of the caller counts no more.
        PermissionDeniedError: It is that of somebody else.
    """
    shown = certificate_of_caller(settings)
    if shown is None:
        return None
    identity = _identity(shown, settings)
    if role not in _ROLES[identity.role]:
        raise _denied(settings, identity, f"the role {name_of(role)}")
    if task.job and (task.job, task.index) != (identity.job, identity.task):
        raise _denied(settings, identity, f"the task /job:{task.job[:60]}/task:{task.index}")
    return identity


def _identity(shown: ShownCertificate, settings: ServingSettings) -> CertifiedIdentity:
    from stratagem_rpc.certificates.folder import require_current

    assert settings.certificates is not None
    own = settings.certificates.current()
    require_current(shown, own)
    if shown.identity.cluster != own.identity.cluster:
        raise _denied(settings, shown.identity, f"the cluster {own.identity.cluster!r}")
    return shown.identity


def _denied(
    settings: ServingSettings,
    identity: CertifiedIdentity,
    what: str,
    remedy: str = "give the process the certificate of its own task",
) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"{settings.label} was called with {what}, and with the certificate of {identity.label} of "
        f"the cluster {identity.cluster!r}; {remedy}"
    )
