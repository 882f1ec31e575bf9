"""Folders of certificates that are read, refused and written anew."""

from __future__ import annotations

import datetime
import os
import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from stratagem_proto.errors import InvalidArgumentError
from stratagem_rpc.certificates.folder import CertificateFolder, read_certificates
from tests.certified import DAY, Certified, certified, serial


@pytest.fixture
def authority(tmp_path: Path) -> Certified:
    return certified(tmp_path)


def test_a_folder_says_whose_it_is(authority: Certified) -> None:
    found = read_certificates(authority.of("worker:3"))
    identity = found.identity
    assert (identity.cluster, identity.role) == ("prod", "worker")
    assert (identity.job, identity.task) == ("worker", 3)
    assert "PRIVATE" not in repr(found)


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
def test_a_missing_file_is_named(authority: Certified, name: str) -> None:
    folder = authority.of("ps:0")
    (folder / name).unlink()
    with pytest.raises(InvalidArgumentError, match=f"{folder / name} cannot be read: No such file"):
        read_certificates(folder)


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
def test_what_is_no_pem_is_named(authority: Certified, name: str) -> None:
    folder = authority.of("ps:0")
    (folder / name).write_text("-----BEGIN NOTHING-----")
    with pytest.raises(InvalidArgumentError, match=str(folder / name)):
        read_certificates(folder)


def test_a_key_that_others_can_read_is_refused(authority: Certified) -> None:
    folder = authority.of("ps:0")
    (folder / "tls.key").chmod(0o644)
    with pytest.raises(InvalidArgumentError, match=r"other users .* can read .* chmod 600"):
        read_certificates(folder)
    (folder / "tls.key").chmod(0o640)
    read_certificates(folder)


def test_a_key_of_another_certificate_is_refused(authority: Certified) -> None:
    folder, other = authority.of("ps:0"), authority.of("ps:1")
    shutil.copy(other / "tls.key", folder)
    with pytest.raises(InvalidArgumentError, match=r"tls.key is not the key of .*tls.crt"):
        read_certificates(folder)


def test_another_authority_is_refused(authority: Certified, tmp_path: Path) -> None:
    folder, other = authority.of("ps:0"), certified(tmp_path / "other").of("ps:0")
    shutil.copy(other / "ca.crt", folder)
    with pytest.raises(InvalidArgumentError, match=r"no authority in .*ca.crt has signed"):
        read_certificates(folder)


def test_an_expired_certificate_says_how_to_renew_it(authority: Certified) -> None:
    folder = authority.of("ps:0", days=-1e-9)
    with pytest.raises(InvalidArgumentError, match=r"has expired at .* the clock of this machine"):
        read_certificates(folder)


def signed(authority: Certified, *names: x509.GeneralName, begins: datetime.timedelta) -> Path:
    """Return a folder with a certificate of the authority that says just this."""
    key, folder = ec.generate_private_key(ec.SECP256R1()), authority.of("ps:0")
    now = datetime.datetime.now(datetime.timezone.utc)
    signer = authority.authority
    builder = x509.CertificateBuilder(
        signer.certificate.subject,
        signer.certificate.subject,
        key.public_key(),
        x509.random_serial_number(),
        now + begins,
        now + begins + DAY,
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(signer.key, hashes.SHA256())
    (folder / "tls.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "tls.key").write_bytes(private)
    return folder


def test_a_certificate_that_is_not_valid_yet_speaks_of_clocks(authority: Certified) -> None:
    folder = signed(authority, begins=DAY)
    with pytest.raises(InvalidArgumentError, match=r"is valid from .* set the clocks"):
        read_certificates(folder)


NOW = datetime.timedelta(hours=-1)
URI = x509.UniformResourceIdentifier


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([], "names 0 SPIFFE IDs and has to name one"),
        ([URI("spiffe://a/role/chief"), URI("spiffe://b/role/chief")], "names 2 SPIFFE IDs"),
        ([URI("spiffe://prod/job/ps/task/0")], r"tls.crt: .* names no process of a cluster"),
        (
            [URI("spiffe://prod/job/ps/task/0/role/server"), x509.DNSName("0.ps.prod.stratagem")],
            "lacks the DNS names .*: ps.prod.stratagem, any.prod.stratagem",
        ),
    ],
)
def test_a_certificate_that_does_not_say_whose_it_is_is_refused(
    authority: Certified, names: list[x509.GeneralName], says: str
) -> None:
    folder = signed(authority, *names, begins=NOW)
    with pytest.raises(InvalidArgumentError, match=says):
        read_certificates(folder)


@pytest.mark.parametrize("line", [str(2**158), "-1a", "0x1a", "1_a", "worker:0"])
def test_what_is_no_serial_number_denies_nobody_and_is_named(
    authority: Certified, line: str
) -> None:
    folder, told = authority.of("ps:0"), list[str]()
    (folder / "denied.txt").write_text(f"12AB  # lost\n{line}\n")
    with pytest.raises(InvalidArgumentError, match=r"line 2: .* at most 40 hexadecimal"):
        read_certificates(folder)
    (folder / "denied.txt").write_text("cd\n")
    read = CertificateFolder(folder, told.append)
    (folder / "denied.txt").write_text(f"12AB  # lost\n{line}\n")
    # Those from before, too, since nobody knows what the line is to say.
    assert read.current().denied == {0x12AB, 0xCD}
    assert "only new denials count, until this is mended" in told[0]
    (folder / "denied.txt").write_text("12AB\n")
    assert read.current().denied == {0x12AB}


def test_who_is_denied_while_certificates_are_exchanged_is_refused(authority: Certified) -> None:
    folder, told = authority.of("ps:0"), list[str]()
    read = CertificateFolder(folder, told.append)
    before = read.current()
    (folder / "tls.key").write_bytes(b"half a key")
    (folder / "denied.txt").write_text("12AB\n")
    assert read.current().denied == {0x12AB}
    assert read.current().key == before.key
    assert "no private key" in told[0]


def test_what_is_written_later_counts_and_what_cannot_be_used_is_told_once(
    authority: Certified,
) -> None:
    folder, told = authority.of("ps:0"), list[str]()
    read = CertificateFolder(folder, told.append)
    first = read.current()
    assert read.current() is first
    kept = (folder / "tls.key").read_bytes()
    authority.of("ps:0")
    assert read.current().leaf.serial_number == serial(folder)
    assert not told

    os.replace(folder / "tls.key", folder / "aside")
    (folder / "tls.key").write_bytes(kept)
    (folder / "tls.key").chmod(0o600)
    before = read.current()
    assert read.current() is before
    (why,) = told
    assert "is not the key of" in why

    os.replace(folder / "aside", folder / "tls.key")
    assert read.current().leaf.serial_number == serial(folder)
    assert told[1:] == [f"all that was written among the certificates in {folder} counts now"]
    authority.of("ps:0")
    assert read.current().leaf.serial_number == serial(folder)
    assert len(told) == 2


def test_what_was_refused_is_used_once_it_can_be(authority: Certified) -> None:
    folder, told = authority.of("ps:0"), list[str]()
    read = CertificateFolder(folder, told.append)
    before = read.current()
    # As a clock that is behind does, this changes without the file being written again.
    key = authority.of("ps:0") / "tls.key"
    key.chmod(0o644)
    assert [read.current() for _ in range(3)] == [before] * 3
    key.chmod(0o600)
    assert read.current().leaf.serial_number == serial(folder)
    assert len(told) == 2
