"""Whether callers are whom their certificates name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stratagem_proto.certificates.identity import CertifiedIdentity
from stratagem_proto.errors import PermissionDeniedError
from stratagem_proto.serving.access import name_of
from stratagem_proto.serving.callers import present_call
from stratagem_proto.serving.settings import ServingSettings
from stratagem_proto.v1.session_pb2 import (
    ROLE_CHIEF,
    ROLE_COORDINATOR,
    ROLE_EVALUATOR,
    ROLE_OBSERVER,
    ROLE_OPERATOR,
    ROLE_SERVER,
    ROLE_WORKER,
    OpenSessionRequest,
    Role,
    Task,
)

if TYPE_CHECKING:
    from stratagem_proto.certificates.shown import ShownCertificate

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
}


# Whose sessions with parameter servers also have filters and policies of their tasks. Who leads has
# sessions of no task, too, while it waits for its turn.
_LED = frozenset({ROLE_WORKER, ROLE_EVALUATOR})


def certificate_of_caller(settings: ServingSettings) -> ShownCertificate | None:
    """Return what the present call has shown; None on a server without certificates."""
    return None if settings.tls is None else _shown_by(present_call())


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


def _shown_by(call: Any) -> ShownCertificate | None:
    """Return what the client of a call has shown to a server with certificates, if anything."""
    from stratagem_proto.certificates.shown import shown_certificate

    if (context := getattr(call, "auth_context", None)) is None:
        found: ShownCertificate | None = getattr(call, "certificate", None)
        return found
    (pem,) = context()["x509_pem_cert"]
    return shown_certificate(pem)


def _identity(shown: ShownCertificate, settings: ServingSettings) -> CertifiedIdentity:
    from stratagem_proto.certificates.shown import require_current

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
