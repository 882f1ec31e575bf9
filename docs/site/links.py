"""Where links of pages lead."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_FENCE = re.compile(r"^ *```")


def relinked(text: str, change: Callable[[str], str]) -> str:
    """Return a page whose links to files are changed; those in blocks of code are none."""
    lines, is_code = [], False
    for line in text.splitlines(keepends=True):
        is_code ^= bool(_FENCE.match(line))
        lines.append(line if is_code else _LINK.sub(lambda link: change(link[1]), line))
    return "".join(lines)


def target(page: str, link: str) -> str:
    """Return the path that a link of a page leads to, without the heading; "" for none here."""
    path = link.partition("#")[0]
    if not path or re.match(r"[a-z]+:", path):
        return ""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path))


def link_to(place: str, page: str, link: str) -> str:
    """Return a page's link to a place, with the heading that another link has."""
    _, mark, heading = link.partition("#")
    return posixpath.relpath(place, posixpath.dirname(page) or ".") + mark + heading
