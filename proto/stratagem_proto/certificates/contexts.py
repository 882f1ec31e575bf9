"""TLS for connections that do without gRPC, with what is in a folder of certificates."""

from __future__ import annotations

import os
import ssl
from contextlib import closing
from functools import lru_cache

from stratagem_proto.certificates.contents import Certificates


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
