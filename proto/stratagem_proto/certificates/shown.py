"""What somebody's certificate says, once a handshake has found that the authority has signed it."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from stratagem_proto.certificates.contents import Certificates, identified
from stratagem_proto.certificates.identity import CertifiedIdentity
from stratagem_proto.errors import UnauthenticatedError


class ShownCertificate(NamedTuple):
    """The certificate of whoever has connected.

    Attributes:
        identity: Whose it is.
        serial: Its serial number.
        ends: When it ends to be valid.
    """

    identity: CertifiedIdentity
    serial: int
    ends: datetime


# Each call has the whole certificate of its connection.
@lru_cache(maxsize=4096)
def shown_certificate(pem: bytes) -> ShownCertificate:
    """Return what a certificate says.

    Raises:
        InvalidArgumentError: It does not say whose it is.
    """
    found = x509.load_pem_x509_certificate(pem)
    identity = identified(Path("the certificate of the other end"), found)
    return ShownCertificate(identity, found.serial_number, found.not_valid_after_utc)


def require_current(shown: ShownCertificate, own: Certificates) -> None:
    """Check that a certificate counts still, which it did when its connection began.

    Args:
        shown: The certificate.
        own: What this process has in its folder now.

    Raises:
        UnauthenticatedError: It has expired, or is denied.
    """
    who = f"the certificate {shown.serial:x} of {shown.identity.label}"
    if shown.serial in own.denied:
        raise UnauthenticatedError(f"{who} is among the denied ones; get another one")
    if datetime.now(timezone.utc) >= shown.ends:
        raise UnauthenticatedError(
            f"{who} has expired at {shown.ends:%F %T} UTC; renew it in the folder of its process"
        )
