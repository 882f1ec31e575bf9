"""An authority that certifies the processes of one cluster."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from typing_extensions import Self

from stratagem_proto.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from stratagem_rpc.certificates.folder import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    parse_certificates,
    read_identity,
)
from stratagem_rpc.certificates.identity import CertifiedIdentity

AUTHORITY_KEY = "ca.key"

# Clocks of other machines may be behind.
_BACKDATED = timedelta(minutes=5)


@dataclass(frozen=True)
class Authority:
    """An authority, with its key.

    Attributes:
        cluster: The cluster whose processes it certifies.
        certificate: Its own certificate.
        key: The key by which it signs.
    """

    cluster: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls, cluster: str, days: float) -> Self:
        """Return an authority that did not exist.

        Raises:
            InvalidArgumentError: There can be no cluster of this name.
        """
        # Its check is the one for names.
        CertifiedIdentity(cluster, "observer")
        key, name = _new_key(), _name(cluster, "authority")
        builder = _builder(name, name, key.public_key(), days)
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        usage = _usage(signs_certificates=True)
        certificate = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
        return cls(cluster, certificate, key)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the authority that `write` has written.

        Raises:
            InvalidArgumentError: The files are something else.
            NotFoundError: There is none.
        """
        try:
            pem, key_pem = ((folder / name).read_bytes() for name in (AUTHORITY, AUTHORITY_KEY))
        except OSError as error:
            raise NotFoundError(
                f"there is no authority in {folder}: {error.filename}: {error.strerror}; make one "
                "by `stratagem certs init`, or give its folder by --authority"
            ) from error
        try:
            certificate = x509.load_pem_x509_certificate(pem)
            key = load_pem_private_key(key_pem, password=None)
            names = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
            cluster = str(names[0].value)
        except (ValueError, TypeError, IndexError) as error:
            raise InvalidArgumentError(
                f"{AUTHORITY} and {AUTHORITY_KEY} in {folder} are those of no cluster: {error}"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidArgumentError(f"{folder / AUTHORITY_KEY} has another kind of key")
        return cls(cluster, certificate, key)

    def write(self, folder: Path) -> None:
        """Write it to a folder, which is made.

        Raises:
            AlreadyExistsError: There is one already.
        """
        if (folder / AUTHORITY_KEY).exists():
            raise AlreadyExistsError(
                f"{folder} has an authority already, whose certificates another one would make "
                "invalid; give another folder, or delete this one"
            )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(folder / AUTHORITY_KEY, _private(self.key))
        _write(folder / AUTHORITY, self._pem, mode=0o644)

    @property
    def _pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def certify(self, role: str, job: str, task: int, folder: Path, days: float) -> None:
        """Write a folder of certificates for a process, with a new key; it may replace others.

        Args:
            role: What the process is to the cluster.
            job: The job of its task; "" for none.
            task: The index of its task.
            folder: The folder, which is made.
            days: For how long the certificate is valid.

        Raises:
            InvalidArgumentError: There can be no such process in a cluster.
        """
        identity = CertifiedIdentity(self.cluster, role, job, task)
        key = _new_key()
        certificate = self._signed(identity, key.public_key(), days)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(folder / KEY, _private(key))
        _write(folder / CERTIFICATE, certificate.public_bytes(Encoding.PEM), mode=0o644)
        _write(folder / AUTHORITY, self._pem, mode=0o644)

    def certified(self, folder: Path) -> CertifiedIdentity:
        """Return whose the certificate in a folder is, which may have expired.

        Raises:
            InvalidArgumentError: There is none, or it is of another cluster.
        """
        path = folder / CERTIFICATE
        identity = read_identity(path, parse_certificates(path)[0])
        if identity.cluster != self.cluster:
            raise InvalidArgumentError(
                f"{path} is of the cluster {identity.cluster!r}, and this authority certifies "
                f"processes of {self.cluster!r}; give the other authority by --authority"
            )
        return identity

    def _signed(
        self, identity: CertifiedIdentity, key: ec.EllipticCurvePublicKey, days: float
    ) -> x509.Certificate:
        name = _name(identity.cluster, identity.label)
        builder = _builder(name, self.certificate.subject, key, days)
        names = x509.SubjectAlternativeName(
            [x509.UniformResourceIdentifier(identity.uri), *map(x509.DNSName, identity.names)]
        )
        # Most processes are clients of some and servers of others.
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(names, critical=False)
            .add_extension(signer, critical=False)
            .sign(self.key, hashes.SHA256())
        )


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _name(cluster: str, what: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster),
            x509.NameAttribute(NameOID.COMMON_NAME, what[:64]),
        ]
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file that readers see complete, with its former content or with this one."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        os.chmod(file.name, mode)
        file.write(content)
    os.replace(file.name, path)
