"""Who may see the page."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from http.cookies import CookieError, SimpleCookie

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
    name = _without_port(host).lower()
    if name in ("localhost", bound.strip("[]").lower(), socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
