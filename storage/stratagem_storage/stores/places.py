"""Places of checkpoints: paths of the file system, and URLs of stores."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from stratagem_proto.errors import InvalidArgumentError

# `Path` makes one slash of two.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/+)(.*)", re.DOTALL)

_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "memory": "memory"}

MEMORY = "memory"


@dataclass(frozen=True)
class StoreUrl:
    """The place of objects in a store, written like s3://bucket/runs/7.

    Attributes:
        scheme: The kind of store: "s3", "gs" or "memory".
        segments: What stands between the slashes, the name of the bucket first.
    """

    scheme: str
    segments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.scheme}://{'/'.join(self.segments)}"

    def __truediv__(self, name: str) -> StoreUrl:
        return StoreUrl(self.scheme, (*self.segments, name))

    @property
    def name(self) -> str:
        """The last segment."""
        return self.segments[-1]

    @property
    def parent(self) -> StoreUrl:
        """The place that contains it."""
        return StoreUrl(self.scheme, self.segments[:-1])


Place: TypeAlias = Path | StoreUrl

AnyPlace: TypeAlias = str | os.PathLike[str] | StoreUrl
"""A place, or what users write for one."""


def place_of(path: AnyPlace) -> Place:
    """Return the place that a path or a URL names.

    Raises:
        InvalidArgumentError: It is a URL of another kind, has more in it than a path, or is no
            path.
    """
    if isinstance(path, StoreUrl):
        return path
    text = os.fspath(path)
    if "\0" in text:
        raise InvalidArgumentError(f"{text!r} is no path; pass one without zeros")
    url = _URL.match(text)
    if url is None and "://" not in text:
        return Path(text)
    if url is None or url[1].lower() not in {*_SCHEMES, "file"}:
        raise InvalidArgumentError(
            f"{_shown(_with_slashes(text))!r} is a URL, and checkpoints are only written to "
            "and read from file systems, s3://BUCKET/PATH and gs://BUCKET/PATH; mount the "
            "storage, or save to a folder and copy that"
        )
    return _of_url(url[1].lower(), url[2], url[3])


def _of_url(scheme: str, slashes: str, rest: str) -> Place:
    if scheme == "file":
        if len(slashes) == 2:
            raise InvalidArgumentError(
                f"'file://{_shown(rest)}' names a file of another host; write file:///PATH"
            )
        return Path(f"/{rest}")
    segments = tuple(rest.rstrip("/").split("/"))
    if set(rest) & set("?#@"):
        raise InvalidArgumentError(
            f"'{scheme}://{_shown(rest)}' has more in it than a bucket and a path; give keys and "
            "options to the store's library by environment variables or its own files"
        )
    if len(slashes) > 2 or {"", ".", ".."} & set(segments) or not rest.isprintable():
        raise InvalidArgumentError(
            f"{f'{scheme}:{slashes}{rest}'!r} is not the URL of a place; write "
            f"{scheme}://BUCKET/PATH without empty names, '.' and '..'"
        )
    return StoreUrl(_SCHEMES[scheme], segments)


def _with_slashes(text: str) -> str:
    url = _URL.match(text)
    return f"{url[1]}://{url[3]}" if url else text


def _shown(text: str) -> str:
    """Return a URL without what may be a secret in it."""
    return re.sub(r"(^|/)[^/]*@", r"\1...@", re.split(r"[?#]", text)[0])


def absolute_place(path: AnyPlace) -> Place:
    """Return the place that a path or a URL names in every process; it raises like `place_of`."""
    place = place_of(path)
    return Path(os.path.abspath(place)) if isinstance(place, Path) else place


def shared_place(path: AnyPlace) -> Place:
    """Return the place that a path or a URL names for several processes.

    Raises:
        InvalidArgumentError: As by `place_of`; or only one process has the place.
    """
    place = place_of(path)
    if isinstance(place, StoreUrl) and place.scheme == MEMORY:
        raise InvalidArgumentError(
            f"{str(place)!r} is in the memory of one process, where no other finds it; pass a "
            "folder, or the URL of a store that all processes reach, such as s3://BUCKET/PATH"
        )
    return place
