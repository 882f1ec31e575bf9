"""The certificates that this process shows to the servers that it calls."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from stratagem_proto.errors import FailedPreconditionError

if TYPE_CHECKING:
    from stratagem_rpc.certificates.folder import CertificateFolder

TLS_VARIABLE = "STRATAGEM_TLS"

_LOG = logging.getLogger("stratagem")


def not_installed() -> ImportError:
    """Return the error of a process that has no package to read certificates with."""
    return ImportError("certificates need the package cryptography: pip install 'stratagem[tls]'")


@lru_cache(maxsize=64)
def certificates_in(path: Path, warn: Callable[[str], object]) -> CertificateFolder:
    """Return a folder of certificates, the same one each time; raise as `CertificateFolder`.

    Raises:
        ImportError: The package cryptography is not installed.
    """
    try:
        from stratagem_rpc.certificates.folder import CertificateFolder
    except ImportError as error:
        raise not_installed() from error
    return CertificateFolder(path, warn)


class _Presenting:
    """What this process shows for the time of a block."""

    folder: CertificateFolder | None = None


def presented() -> CertificateFolder | None:
    """Return the certificates of this process; None if it shows none and encrypts nothing.

    Raises:
        ImportError: As for `certificates_in`.
        InvalidArgumentError: The folder that `STRATAGEM_TLS` names cannot be used.
    """
    path = os.environ.get(TLS_VARIABLE)
    return _Presenting.folder or (certificates_in(Path(path), _LOG.warning) if path else None)


@contextmanager
def presenting(path: Path) -> Iterator[None]:
    """Show the certificates in a folder in connections that begin within the block.

    Raises:
        FailedPreconditionError: Others are shown already, by another such block.
    """
    if (others := _Presenting.folder) is not None:
        raise FailedPreconditionError(
            f"this process shows the certificates in {others.path} already, and cannot show those "
            f"in {path}; end the cluster that has them first"
        )
    _Presenting.folder = certificates_in(path, _LOG.warning)
    try:
        yield
    finally:
        _Presenting.folder = None
