"""What clients and servers must agree on besides the messages.

That is the version of the protocol, limits of sizes and names, which of two versions of a variable
is newer, and what a session is called where its id is not told.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Protocol, TypedDict

from stratagem_proto.errors import InvalidArgumentError, InvalidNameError, ProtocolVersionError

# A release speaks its own version and that of the release before, so that the processes of a
# cluster can be replaced one after the other.
PROTOCOL_VERSION = 3
OLDEST_PROTOCOL_VERSION = 3

# Tensors of a stream are sent in chunks of this many bytes. Smaller chunks are slower, and larger
# ones hardly faster.
CHUNK_BYTES = 1 << 20
MAX_CHUNK_BYTES = 4 << 20
# Larger uploads are sent in chunks of this size: gRPC writes 0.95 MiB at once, so a chunk of a MiB
# would take two writes.
UPLOAD_CHUNK_BYTES = 960 << 10
# A header with one entry for each of 10^5 variables fits.
MAX_HEADER_BYTES = 32 << 20

MAX_NAME_LENGTH = 512
MAX_LABEL_LENGTH = 128
MAX_STRUCTURE_LENGTH = 64
MAX_RANK = 32
MAX_TENSORS = 100_000

MOST_SCALARS, SCALAR_NAME_CHARACTERS = 32, 100
"""Most numbers that a program logs under different names, and the most characters of a name."""

PING_SECONDS = 5.0
"""A connection whose peer leaves a ping unanswered for this time is closed."""

MAX_EXTRA_BYTES = 1 << 16
"""The longest `extra` that servers keep of the checkpoint that a run began with, as JSON."""

SESSION_ID_BYTES = 16
"""Bytes of a session's id that others are told; whoever knows all of it could use the session."""

RUN_BYTES = 8
"""Bytes that name the run of a server's process in the message `Reached`."""

REACHED_BYTES = RUN_BYTES + 8
"""Bytes by which a server tells how far it had come, as in the message `Reached`."""

TOKEN_BYTES = 16
"""The shortest secret of a cluster. Nobody can guess so many random bytes, whatever he sees."""

_NAME = re.compile(r"[A-Za-z0-9_.\-/:+]+")
_PART = re.compile(r"/part_[0-9]+\Z")


def check_name(name: str, what: str = "variable") -> None:
    """Check the name of a variable, a group or a barrier.

    Raises:
        InvalidNameError: The name is empty, longer than `MAX_NAME_LENGTH` characters, or has other
            characters than letters, digits and _.-/:+.
    """
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        raise InvalidNameError(
            f"{what} name {name[:40]!r} has {len(name)} characters; "
            f"1 to {MAX_NAME_LENGTH} are allowed",
            variable=name[:MAX_NAME_LENGTH],
        )
    if not _NAME.fullmatch(name):
        raise InvalidNameError(
            f"{what} name {name!r} has characters other than letters, digits and _.-/:+; rename it",
            variable=name,
        )


def name_of_whole(name: str) -> str:
    """Return the name of a variable by that of a part of it; other names stay as they are."""
    return _PART.sub("", name)


def check_token(token: str, what: str = "the cluster token") -> None:
    """Check that the secret of a cluster is long enough; "" is none.

    Args:
        token: The secret.
        what: What to call it in the error, which does not show it.

    Raises:
        InvalidArgumentError: It has fewer than `TOKEN_BYTES` bytes.
    """
    if 0 < len(token.encode()) < TOKEN_BYTES:
        raise InvalidArgumentError(
            f"{what} has {len(token.encode())} bytes, and one of fewer than {TOKEN_BYTES} can be "
            "guessed; make another by 'openssl rand -hex 32' or by "
            "'python -c \"import secrets; print(secrets.token_hex(32))\"'"
        )


def session_name(session_id: bytes) -> bytes:
    """Return what servers know a session by, and store: a digest of its id, which opens nothing.

    Args:
        session_id: The id, which a credential may follow, and what its client was told last.
    """
    return _session_name(session_id[:SESSION_ID_BYTES])


@lru_cache(maxsize=4096)
def _session_name(session_id: bytes) -> bytes:
    return hashlib.sha256(session_id).digest()[:SESSION_ID_BYTES]


def digest_of(session_id: bytes) -> str:
    """Return what a session is called where people read it."""
    return session_name(session_id).hex()[:8]


class Spoken(TypedDict):
    """What one end of a handshake tells of the versions that it speaks, by the names of fields."""

    protocol_version: int
    oldest_protocol_version: int
    release: str


class Speaker(Protocol):
    """A message by which the other end has told the same."""

    @property
    def protocol_version(self) -> int: ...

    @property
    def oldest_protocol_version(self) -> int: ...

    @property
    def release(self) -> str: ...


@cache
def release() -> str:
    """Return the release that is installed, such as "0.1.0"; "" in a bare clone."""
    # Only where a process meets others.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("stratagem")
    except PackageNotFoundError:
        return ""


def spoken() -> Spoken:
    """Return what this process tells of the versions that it speaks."""
    return Spoken(
        protocol_version=PROTOCOL_VERSION,
        oldest_protocol_version=OLDEST_PROTOCOL_VERSION,
        release=release(),
    )


def agreed_version(theirs: Speaker) -> int:
    """Return the latest version of the contract that a client and this server speak.

    Raises:
        ProtocolVersionError: There is none; the error names the versions and releases of both.
    """
    latest = theirs.protocol_version
    oldest = theirs.oldest_protocol_version or latest
    agreed = min(latest, PROTOCOL_VERSION)
    if agreed < max(oldest, OLDEST_PROTOCOL_VERSION):
        client = _versions(oldest, latest, theirs.release)
        server = _versions(OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION, release())
        older = "client" if latest < PROTOCOL_VERSION else "server"
        raise ProtocolVersionError(
            f"the client speaks {client}, this server {server}; install the release of the other "
            f"one where the {older} runs. A cluster changes from one release to the next, and "
            "leaves none out"
        )
    return agreed


def _versions(oldest: int, latest: int, of: str) -> str:
    some = f"version {latest}" if oldest == latest else f"versions {oldest} to {latest}"
    return f"protocol {some} (stratagem {of or 'of a bare clone, or an early one'})"


def check_contributors(replicas_to_aggregate: int, num_workers: int) -> None:
    """Check that so many workers are enough for the contributions of a step.

    Raises:
        InvalidArgumentError: The step needs more.
    """
    if replicas_to_aggregate > num_workers:
        raise InvalidArgumentError(
            f"replicas_to_aggregate is {replicas_to_aggregate}, but only "
            f"{num_workers} workers contribute to a step, once each; ask for fewer"
        )


# The highest bits identify a run of a server that began with a checkpoint. The run before it may
# have applied updates after that checkpoint, and clients may still have their versions, which say
# nothing about the values of this run.

FIRST_VERSION = 1
"""The version of a variable as a program has created it; of one from a checkpoint it is another."""

# No variable is changed as often as this in one run.
_COUNT_BITS = 40

_RUN_BITS = 24


def first_of_another_run(random_bytes: Callable[[int], bytes]) -> int:
    """Return the first version of a run that begins with a checkpoint.

    Args:
        random_bytes: Returns as many random bytes as it is asked for.
    """
    run = 1 + int.from_bytes(random_bytes(8), "big") % ((1 << _RUN_BITS) - 1)
    return (run << _COUNT_BITS) + 1


def is_newer(version: int, than: int) -> bool:
    """Return whether a version replaces one that a client has.

    Args:
        version: The version that a server has now.
        than: The version that the client has. One of another run is older, whatever its number.
    """
    return version > than or version >> _COUNT_BITS != than >> _COUNT_BITS
