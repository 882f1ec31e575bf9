"""The page about a cluster: who may see it, what it answers, and where it is served."""

from __future__ import annotations

import concurrent.futures
import hmac
import ipaddress
import json
import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from stratagem_deploy.dashboard.watcher import EVERY_SECONDS, Watched, Watcher
from stratagem_deploy.watching.asking import ServerAnswer, ServerPlace, ask, places_of
from stratagem_proto.configuration.tf_config import read_tf_config
from stratagem_proto.errors import InvalidArgumentError, StratagemError
from stratagem_rpc.certificates.presented import certificates_in
from stratagem_rpc.server_log import LOG
from stratagem_rpc.serving.pages import ShownServer
from stratagem_rpc.serving.scrape_server import ScrapeServer
from stratagem_rpc.serving.settings import check_address, is_loopback
from stratagem_rpc.socket_server.listener import cannot_listen

if TYPE_CHECKING:
    from stratagem_rpc.certificates.folder import Certificates

_SECRET_BYTES = 32


class Access:
    """The token of one dashboard, and the cookie that whoever shows the token gets.

    Browsers send a cookie to all ports of a host. Its name has the port, so that several dashboards
    do not sign each other's people out.

    Args:
        port: The port of the page.
        is_encrypted: Whether browsers may send the cookie over encrypted connections only.

    Attributes:
        token: What the address for signing in shows; drawn anew by each process.
    """

    def __init__(self, port: int, is_encrypted: bool) -> None:
        self.token = secrets.token_urlsafe(_SECRET_BYTES)
        self._name, self._value = f"stratagem-{port}", secrets.token_urlsafe(_SECRET_BYTES)
        self._only = "; Secure" if is_encrypted else ""

    def cookie_for(self, token: str) -> str | None:
        """Return the cookie of whoever shows this token, as a header; None if it is another one."""
        if not _same(token, self.token):
            return None
        return f"{self._name}={self._value}; Path=/; HttpOnly; SameSite=Strict{self._only}"

    def admits(self, cookies: str) -> bool:
        """Return whether the cookies of a request, as their header, contain the right one."""
        try:
            found = SimpleCookie(cookies).get(self._name)
        except CookieError:
            return False
        return found is not None and _same(found.value, self._value)


def _same(shown: str, secret: str) -> bool:
    return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), secret.encode())


def is_own_host(host: str, bound: str) -> bool:
    """Return whether a Host header is one that this page has.

    A foreign page may make its own name point to this address, and would then see what browsers see
    here. It cannot do so with a number, nor with the names of this machine.

    Args:
        host: The header, with or without a port.
        bound: The host that the page listens on.
    """
    bare = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    name = bare.lower()
    if name in ("localhost", bound.strip("[]").lower(), socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


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


def _plain(status: str, words: str) -> Answer:
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
            return _plain(
                "421 Misdirected Request",
                "This page is not known by that name; use the address that it was started with.",
            )
        if environ["REQUEST_METHOD"] != "GET":
            refused = _plain("405 Method Not Allowed", "This page can only be read.")
            return Answer(refused.status, refused.kind, refused.body, (("Allow", "GET"),))
        query = parse_qs(environ.get("QUERY_STRING", ""))
        if environ["PATH_INFO"] == "/login":
            return self._signed_in(query.get("token", [""])[0])
        if not self._access.admits(environ.get("HTTP_COOKIE", "")):
            return _plain(
                "401 Unauthorized", f"Open the address that {self._told}; it signs you in."
            )
        return self._page(environ["PATH_INFO"], query)

    def _signed_in(self, token: str) -> Answer:
        cookie = self._access.cookie_for(token)
        if cookie is None:
            return _plain(
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
            try:
                return _json(self._watcher.variables())
            except (StratagemError, OSError) as error:
                return _json({"problem": str(error)}, "503 Service Unavailable")
        return self._files.get(path) or _plain("404 Not Found", "There is nothing here.")


def _number(text: str) -> int:
    """Return a number of a point; 0 for anything else."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else 0


class _Http(ScrapeServer):
    """Encrypts for browsers, which have no certificates of the cluster."""

    def context(self, shown: Certificates) -> ssl.SSLContext:
        from stratagem_rpc.certificates.folder import page_context

        return page_context(shown)


class PageServer:
    """Serves the page of a cluster while it is open.

    Attributes:
        address: The "host:port" where it is.
        url: What signs a browser in.
    """

    def __init__(
        self, watcher: Watcher, bind: str, tls: Path | None = None, insecure: bool = False
    ) -> None:
        """Listen at a "host:port", and answer from now on; port 0 takes a free one.

        Raises:
            ImportError: There are certificates, and the package cryptography is not installed.
            InvalidArgumentError: The address or a certificate is not valid, or other machines could
                reach the page unencrypted without `insecure`.
            UnavailableError: The port is taken, or the host is not this machine's.
        """
        check_address(bind)
        if not (is_loopback(bind) or tls or insecure):
            raise InvalidArgumentError(
                f"{bind} can be reached from other machines and the page is not encrypted; give "
                "--tls with a folder of certificates, bind to 127.0.0.1, or give --insecure if the "
                "network is trusted"
            )
        host, _, port = bind.rpartition(":")
        certificates = certificates_in(tls, LOG.warning) if tls else None
        try:
            self._server = _Http(host.strip("[]"), int(port), certificates)
        except OSError as error:
            raise cannot_listen(bind) from error
        access = Access(self._server.server_port, is_encrypted=tls is not None)
        self._server.set_app(Site(watcher, access, host, "`stratagem dashboard` has printed"))
        self.address = f"{host}:{self._server.server_port}"
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://{self.address}/login?token={access.token}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="dashboard", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_INTERVAL_SECONDS = _PATIENCE_SECONDS = 2.0

# Other servers are asked while somebody looks, who waits for the slowest of them.
_TIMEOUT_SECONDS = 2.0


class ServerPage:
    """Looks at a server within its own process, and at the others of its `TF_CONFIG` over the wire.

    Nothing runs on the event loop of the server but the description of its status, as for a scrape.
    The others are asked only while somebody looks at the page, so that servers that all have one do
    not keep each other busy.

    Args:
        server: The server, which serves.

    Attributes:
        url: What signs a browser in.
    """

    def __init__(self, server: ShownServer) -> None:
        host, _, port = server.page_address.rpartition(":")
        self._server, self._others = server, _others(server.task)
        heading = f"the cluster of {server.task}" if self._others else server.task
        self._watcher = Watcher(
            Watched(
                self._look,
                lambda: self._look(with_variables=True),
                heading,
                _INTERVAL_SECONDS,
                _PATIENCE_SECONDS,
                EVERY_SECONDS,
            )
        )
        access = Access(int(port), server.is_encrypted)
        self._site = Site(self._watcher, access, host, "this server has logged")
        scheme = "https" if server.is_encrypted else "http"
        self.url = f"{scheme}://{server.page_address}/login?token={access.token}"
        self._watcher.start()

    def __call__(
        self, environ: Mapping[str, Any], start_response: Callable[..., object]
    ) -> Iterable[bytes]:
        return self._site(environ, start_response)

    def stop(self) -> None:
        """Look no more; a look that has begun ends first."""
        self._watcher.stop()

    def _look(self, with_variables: bool = False) -> list[ServerAnswer]:
        own = self._own(with_variables)
        if not self._watcher.is_watched:
            return [own]
        moved = [ServerPlace(own.moved_to, own.task)] if own.moved_to else []
        places = [*moved, *self._others]
        asked = ask(places, self._server.token, _TIMEOUT_SECONDS, with_variables)
        others = [each for each in asked if not _are_one(each, own)]
        return sorted([*others] if moved else [own, *others], key=_order)

    def _own(self, with_variables: bool) -> ServerAnswer:
        place = ServerPlace(self._server.address, self._server.task)
        try:
            return ServerAnswer(place, self._server.ask(with_variables))
        except concurrent.futures.TimeoutError:
            return ServerAnswer(
                place, None, f"{place.label} is stuck: its event loop does not turn"
            )


def _others(task: str) -> Sequence[ServerPlace]:
    """Return the other servers of the cluster, and all replicas of this task.

    Which replica this one is shows in what they answer.
    """
    try:
        found = places_of(read_tf_config())
    except StratagemError as error:
        LOG.warning("the page shows this server alone", task=task, why=str(error))
        return ()
    tasks = {place.label for place in found}
    if task not in tasks:
        return ()
    return [place for place in found if place.label != task or place.replica is not None]


def _are_one(answer: ServerAnswer, own: ServerAnswer) -> bool:
    return bool(
        answer.status and own.status and answer.status.incarnation == own.status.incarnation
    )


def _order(answer: ServerAnswer) -> tuple[str, int]:
    job, _, index = answer.task.partition(":")
    return job, int(index or 0)
