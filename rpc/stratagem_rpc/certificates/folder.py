"""The folder with a process's certificates: what is in it, once it is checked, and TLS by it."""

from __future__ import annotations

import os
import re
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from stratagem_proto.errors import InvalidArgumentError, UnauthenticatedError
from stratagem_proto.secret_files import is_readable_by_others
from stratagem_rpc.certificates.identity import CertifiedIdentity

CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"
"""The files, named as cert-manager and the helpers of SPIFFE write them."""

DENIED = "denied.txt"
"""A file that need not be there: the serial numbers of certificates that count no more."""

# A serial number has at most 20 bytes (RFC 5280). One of 20 has more decimal digits than these.
_MOST_DIGITS = 40
_SERIAL = re.compile(rf"[0-9a-fA-F]{{1,{_MOST_DIGITS}}}")

_SPIFFE = "spiffe://"


@dataclass(frozen=True)
class Certificates:
    """What a process shows, and whom it trusts.

    Attributes:
        identity: Who the certificate says that it is.
        chain: The certificate, and those between it and the authority, in PEM.
        key: Its private key, in PEM.
        authorities: The certificates of the authorities that it trusts, in PEM.
        leaf: The certificate.
        denied: The serial numbers of certificates that are refused, whoever has signed them.
    """

    identity: CertifiedIdentity
    chain: bytes
    key: bytes = field(repr=False)
    authorities: bytes
    leaf: x509.Certificate
    denied: frozenset[int]


def read_certificates(folder: Path) -> Certificates:
    """Return what is in a folder.

    Raises:
        InvalidArgumentError: A file is missing, others can read the key, the certificate does not
            say whose it is, it is not valid now, the authority has not signed it, or a line of the
            denied ones is no serial number.
    """
    chain, key = _content(folder / CERTIFICATE), _content(folder / KEY)
    authorities = _content(folder / AUTHORITY)
    _require_private(folder / KEY)
    leaf, *between = _certificates(folder / CERTIFICATE, chain)
    _require_key(folder, leaf, key)
    _require_valid(folder / CERTIFICATE, leaf)
    _require_signed(folder, leaf, [*between, *_certificates(folder / AUTHORITY, authorities)])
    identity = read_identity(folder / CERTIFICATE, leaf)
    return Certificates(identity, chain, key, authorities, leaf, _denied(folder / DENIED))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(
            f"{path} cannot be read: {error.strerror}; a folder of certificates has {CERTIFICATE}, "
            f"{KEY} and {AUTHORITY}, as `stratagem certs issue` writes them"
        ) from error


def legibly_denied(folder: Path) -> frozenset[int]:
    """Return the denied serial numbers in a folder, whatever else there cannot be used."""
    try:
        given = _denying_lines(folder / DENIED)
    except InvalidArgumentError:
        return frozenset()
    return frozenset(int(text, 16) for _, text in given if _SERIAL.fullmatch(text))


def _denied(path: Path) -> frozenset[int]:
    return frozenset(_serial(path, number, text) for number, text in _denying_lines(path))


def _denying_lines(path: Path) -> list[tuple[int, str]]:
    """Return the numbers of lines, and what is in them before a #."""
    if not path.exists():
        return []
    lines = _content(path).decode(errors="replace").splitlines()
    given = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    return [(number, text) for number, text in given if text]


def _serial(path: Path, number: int, text: str) -> int:
    if not _SERIAL.fullmatch(text):
        raise InvalidArgumentError(
            f"{path}, line {number}: {text[:60]!r} is no serial number of at most "
            f"{_MOST_DIGITS} hexadecimal digits; write one as `stratagem certs show --json` prints "
            "it, and what it is after a #"
        )
    return int(text, 16)


def _require_private(path: Path) -> None:
    if is_readable_by_others(path):
        raise InvalidArgumentError(
            f"other users of this machine can read the key {path}; chmod 600 it, and issue another "
            "one if somebody may have read it (on Kubernetes, give the volume defaultMode: 0440)"
        )


def parse_certificates(path: Path) -> list[x509.Certificate]:
    """Return the certificates in a file, of which the first one counts.

    Raises:
        InvalidArgumentError: There are none.
    """
    return _certificates(path, _content(path))


def _certificates(path: Path, pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise InvalidArgumentError(f"{path} has no certificates in PEM: {error}") from error


def _require_key(folder: Path, leaf: x509.Certificate, pem: bytes) -> None:
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"{folder / KEY} has no private key in PEM without a password: {error}"
        ) from error
    if _encoded(key.public_key()) != _encoded(leaf.public_key()):
        raise InvalidArgumentError(
            f"{folder / KEY} is not the key of {folder / CERTIFICATE}; issue both together"
        )


def _encoded(key: object) -> bytes:
    public: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return public


def _require_valid(path: Path, leaf: x509.Certificate) -> None:
    now = datetime.now(timezone.utc)
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if now < begins:
        raise InvalidArgumentError(
            f"{path} is valid from {begins:%F %T} UTC, and the clock of this machine says "
            f"{now:%F %T}; set the clocks, or issue it again"
        )
    if now >= ends:
        raise InvalidArgumentError(
            f"{path} has expired at {ends:%F %T} UTC, and the clock of this machine says "
            f"{now:%F %T}; renew it, for instance by `stratagem certs renew`"
        )


def _require_signed(
    folder: Path, leaf: x509.Certificate, others: Sequence[x509.Certificate]
) -> None:
    """Check that one of the others, which handshakes judge themselves, has signed a certificate."""
    if not any(_signed(leaf, other) for other in others):
        raise InvalidArgumentError(
            f"no authority in {folder / AUTHORITY} has signed {folder / CERTIFICATE}; give the "
            "authority of this cluster, which its servers and clients share"
        )


def _signed(one: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        one.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def read_identity(path: Path, certificate: x509.Certificate) -> CertifiedIdentity:
    """Return whose a certificate is.

    Raises:
        InvalidArgumentError: It does not say so, or lacks the names that go with it.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        uris, hosts = [], []
    else:
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        hosts = names.get_values_for_type(x509.DNSName)
    ids = [uri for uri in uris if uri.startswith(_SPIFFE)]
    if len(ids) != 1:
        raise InvalidArgumentError(
            f"{path} names {len(ids)} SPIFFE IDs and has to name one, which says what the process "
            "is, for instance spiffe://prod/job/worker/task/0/role/worker"
        )
    identity = _named(path, ids[0])
    _require_names(path, identity, {host.lower() for host in hosts})
    return identity


def _named(path: Path, uri: str) -> CertifiedIdentity:
    try:
        return CertifiedIdentity.from_uri(uri)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error.message}") from error


def _require_names(path: Path, identity: CertifiedIdentity, hosts: set[str]) -> None:
    missing = [name for name in identity.names if name not in hosts]
    if missing:
        raise InvalidArgumentError(
            f"{path} lacks the DNS names by which clients know {identity.label}: "
            f"{', '.join(missing)}; issue it with them"
        )


_Signature: TypeAlias = tuple[tuple[int, int, int], ...]


class CertificateFolder:
    """A folder with `tls.crt`, `tls.key` and `ca.crt`. Thread-safe.

    What is written there counts for the next handshake; connections that exist go on.

    Attributes:
        path: Where it is.
    """

    def __init__(self, path: Path, warn: Callable[[str], object]) -> None:
        """Read it.

        Args:
            path: Where it is.
            warn: Is told, once, why what was written later cannot be used, and when it can be. What
                was there before stays in use until then, with the new denials beside the former
                ones: the files may be written one after the other.

        Raises:
            InvalidArgumentError: As for `read_certificates`.
        """
        self.path, self._warn = path, warn
        self._files = [str(path / name) for name in (CERTIFICATE, KEY, AUTHORITY, DENIED)]
        self._reading = threading.Lock()
        self._written = self._refused = self._signature()
        self._current = read_certificates(path)

    def current(self) -> Certificates:
        """Return what is in the folder now."""
        with self._reading:
            written = self._signature()
            if written != self._written or self._refused != self._written:
                self._renew(written)
            return self._current

    def _renew(self, written: _Signature) -> None:
        try:
            self._current = read_certificates(self.path)
        except InvalidArgumentError as error:
            # They are tried again: what was refused may be valid in a moment, by a clock or a mode.
            if written != self._refused:
                self._warn(
                    "of what was written among the certificates only new denials count, until this "
                    f"is mended: {error.message}"
                )
                self._deny(legibly_denied(self.path))
            self._refused = written
        else:
            if self._refused != self._written:
                self._warn(f"all that was written among the certificates in {self.path} counts now")
            self._written = self._refused = written

    def _deny(self, serials: frozenset[int]) -> None:
        if not serials <= self._current.denied:
            self._current = replace(self._current, denied=self._current.denied | serials)

    def _signature(self) -> _Signature:
        return tuple(map(_stamp, self._files))

    def client_credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials of a channel that is opened now."""
        now = self.current()
        return grpc.ssl_channel_credentials(now.authorities, now.key, now.chain)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a port, which are looked up for each handshake."""
        shown = self.current()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal shown
            now = self.current()
            if now is shown:
                return None
            shown = now
            return _configuration(now)

        # The stubs do not know that None keeps what is there.
        return grpc.dynamic_ssl_server_credentials(
            _configuration(shown),
            renewed,  # type: ignore[arg-type]
            require_client_authentication=True,
        )


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_ino, found.st_size)


def _configuration(of: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(of.key, of.chain)], of.authorities)


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
    identity = read_identity(Path("the certificate of the other end"), found)
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


@lru_cache(maxsize=8)
def client_context(shown: Certificates) -> ssl.SSLContext:
    """Return the TLS of a client, which compares DNS names of servers with the one it means.

    Raises:
        OSError: This system cannot use the certificates.
    """
    return _context(ssl.PROTOCOL_TLS_CLIENT, shown)


@lru_cache(maxsize=8)
def server_context(shown: Certificates) -> ssl.SSLContext:
    """Return the TLS of a server, whose clients have to show certificates; raise likewise."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, shown)
    # Nobody resumes a session, and to a client a ticket would look like an answer.
    context.num_tickets = 0
    return context


@lru_cache(maxsize=8)
def page_context(shown: Certificates) -> ssl.SSLContext:
    """Return the TLS of a page, whose readers show something else; raise likewise."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load(context, shown.chain + b"\n" + shown.key)
    return context


def _context(protocol: int, shown: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    # As with gRPC: whoever is in `ca.crt` is trusted, also where somebody else has signed him.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=shown.authorities.decode())
    _load(context, shown.chain + b"\n" + shown.key)
    return context


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a certificate and its key, which only files can pass on.

    Those in the folder may be exchanged at this moment, one after the other.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError("only Linux keeps the key of a certificate in a file that has no place")
    with closing(open(os.memfd_create("certificate"), "wb", buffering=0)) as file:
        file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
