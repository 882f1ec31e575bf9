"""Where it stands that a process is to end soon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.notices.pods import PodDeletion

ENVIRONMENT = "STRATAGEM_NOTICE"
"""The environment variable that says where a notice is looked for, as `notice_at` takes it."""


class Notice(Protocol):
    """Something that says that this process is to end.

    Attributes:
        name: What people call it.
    """

    name: str

    def is_given(self) -> bool:
        """Look once whether it says so; it may take a second.

        Raises:
            UnavailableError: That cannot be found out now.
        """


class NoticeFile:
    """A file: once it is there, the process is to end.

    Any program can write it that knows of the end, for instance one that asks the machine's
    provider.

    Args:
        path: Where it will be.
    """

    def __init__(self, path: str) -> None:
        if not path:
            raise InvalidArgumentError("a notice in a file needs its path, as in file:/run/notice")
        self._path = Path(path)
        self.name = f"the file {path!r}"

    def is_given(self) -> bool:
        return self._path.exists()


_KINDS: Mapping[str, Callable[[str], Notice]] = {"file": NoticeFile, "kubernetes": PodDeletion}


def notice_at(address: str) -> Notice:
    """Return the notice of an address: "file:PATH", or "kubernetes:NAMESPACE/POD".

    Raises:
        InvalidArgumentError: There is no such kind of notice, or it needs something else.
        FailedPreconditionError: There is no configuration of Kubernetes.
    """
    kind, _, rest = address.partition(":")
    if kind not in _KINDS:
        raise InvalidArgumentError(
            f"a notice is file:PATH or kubernetes:NAMESPACE/POD, not {address!r}"
        )
    return _KINDS[kind](rest)
