"""What the page is made of, for whoever may see it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from stratagem_deploy.dashboard.access import Access, is_own_host
from stratagem_deploy.dashboard.watcher import Watcher
from stratagem_proto.errors import StratagemError

_FOLDER = Path(__file__).parent / "page"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Of the numbers of points.
_MOST_DIGITS = 15

_TEXT, _JSON = "text/plain; charset=utf-8", "application/json"

# Nothing comes from elsewhere, and nothing that a variable is called can become a script.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
    "'script'"
)
_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
)
_SIGNED_IN = (
    b"<!doctype html><html lang=en><meta charset=utf-8><title>Stratagem</title>"
    b'<link rel=icon href="/icon.svg">'
    b'<meta http-equiv=refresh content="0; url=/"><p><a href="/">Go to the dashboard</a></p>'
)

Start = Callable[[str, list[tuple[str, str]]], object]
"""As WSGI's `start_response`."""


@dataclass(frozen=True)
class Answer:
    """An answer over HTTP."""

    status: str
    kind: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def _told(status: str, words: str) -> Answer:
    return Answer(status, _TEXT, f"{words}\n".encode())


def _json(facts: Mapping[str, Any], status: str = "200 OK") -> Answer:
    return Answer(status, _JSON, json.dumps(facts, allow_nan=False).encode())


class Site:
    """Answers requests, as a WSGI application.

    Args:
        watcher: Who knows what the page shows.
        access: Who may see it.
        host: The host that it listens on.
        told: Who has told the address that signs in, as in "open the address that ...".
    """

    def __init__(self, watcher: Watcher, access: Access, host: str, told: str) -> None:
        self._watcher, self._access, self._host, self._told = watcher, access, host, told
        self._files = {
            f"/{path.name}": Answer("200 OK", _KINDS[path.suffix], path.read_bytes())
            for path in _FOLDER.iterdir()
            if path.suffix in _KINDS
        }
        self._files["/"] = self._files["/index.html"]

    def __call__(self, environ: Mapping[str, Any], start_response: Start) -> Iterable[bytes]:
        answer = self._answer(environ)
        length = ("Content-Length", str(len(answer.body)))
        start_response(
            answer.status, [("Content-Type", answer.kind), length, *_HEADERS, *answer.headers]
        )
        return [answer.body]

    def _answer(self, environ: Mapping[str, Any]) -> Answer:
        if not is_own_host(environ.get("HTTP_HOST", ""), self._host):
            return _told(
                "421 Misdirected Request",
                "This page is not known by that name; use the address that it was started with.",
            )
        if environ["REQUEST_METHOD"] != "GET":
            refused = _told("405 Method Not Allowed", "This page can only be read.")
            return Answer(refused.status, refused.kind, refused.body, (("Allow", "GET"),))
        query = parse_qs(environ.get("QUERY_STRING", ""))
        if environ["PATH_INFO"] == "/login":
            return self._signed_in(query.get("token", [""])[0])
        if not self._access.admits(environ.get("HTTP_COOKIE", "")):
            return _told(
                "401 Unauthorized", f"Open the address that {self._told}; it signs you in."
            )
        return self._page(environ["PATH_INFO"], query)

    def _signed_in(self, token: str) -> Answer:
        cookie = self._access.cookie_for(token)
        if cookie is None:
            return _told(
                "401 Unauthorized",
                f"That is not the token of this page; open the address that {self._told} when it "
                "was started last.",
            )
        # A redirect would not do: whoever comes from another site has no strict cookie there yet.
        return Answer("200 OK", _KINDS[".html"], _SIGNED_IN, (("Set-Cookie", cookie),))

    def _page(self, path: str, query: Mapping[str, list[str]]) -> Answer:
        if path == "/look":
            return _json(self._watcher.facts(_number(query.get("after", [""])[0])))
        if path == "/variables":
            return self._variables()
        return self._files.get(path) or _told("404 Not Found", "There is nothing here.")

    def _variables(self) -> Answer:
        try:
            return _json(self._watcher.variables())
        except (StratagemError, OSError) as error:
            return _json({"problem": str(error)}, "503 Service Unavailable")


def _number(text: str) -> int:
    """Return a number of a point; 0 for anything else."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else 0
