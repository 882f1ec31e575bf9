"""What cert-manager would make of the certificates of manifests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.deploy.manifests.rendering import Manifest
from tests.deploy.manifests.tasks import of_kind

_AUTHORITY = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority of prod")])


def certificate_secrets(overlay: str) -> dict[str, dict[str, str]]:
    """The files of the secrets of all tasks of an overlay, by the names of these.

    One authority, made anew, signs all certificates.
    """
    specs: list[Manifest] = [one["spec"] for one in of_kind(overlay, "Certificate").values()]
    key = ec.generate_private_key(ec.SECP256R1())
    own = _signed(key, _AUTHORITY, key.public_key(), x509.BasicConstraints(True, None))
    return {
        spec["secretName"]: {"ca.crt": own, **_issued(spec, key)}
        for spec in specs
        if not spec.get("isCA")
    }


def _issued(spec: Manifest, authority: ec.EllipticCurvePrivateKey) -> Mapping[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in spec["uris"]]
    names += [x509.DNSName(host) for host in spec["dnsNames"]]
    said = x509.SubjectAlternativeName(names)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return {
        "tls.crt": _signed(authority, x509.Name([]), key.public_key(), said),
        "tls.key": pem.decode(),
    }


def _signed(
    authority: ec.EllipticCurvePrivateKey,
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    extension: x509.ExtensionType,
) -> str:
    now = datetime.now(timezone.utc)
    built = (
        x509.CertificateBuilder(_AUTHORITY, subject, key, x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=90))
        .add_extension(extension, critical=True)
        .sign(authority, hashes.SHA256())
    )
    return built.public_bytes(Encoding.PEM).decode()
