"""Refuse requests that a foreign web page makes a browser send: by their Host (DNS rebinding) and by their Origin."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class KnownHosts:
    """Middleware that answers only requests for hosts it knows, and POSTs only of its own pages.

    Addresses are always known: what an attacker can point at another machine is a name. So are localhost, the name of
    this machine, and the one that the service listens on.

    Args:
        app: What answers.
        host: The name or address that the service listens on.
        allowed: More names, such as that of a proxy in front of it.
    """

    def __init__(self, app: ASGIApp, host: str, allowed: Sequence[str] = ()) -> None:
        self.app = app
        self.allowed = {name.lower() for name in allowed}
        self.names = {"localhost", socket.gethostname().lower(), host.lower()} | self.allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = self.refusal(scope["method"], Headers(scope=scope)) if scope["type"] == "http" else None
        if reason is None:
            await self.app(scope, receive, send)
        else:
            await JSONResponse({"error": reason}, 403)(scope, receive, send)

    def refusal(self, method: str, headers: Headers) -> str | None:
        """Return why a request is refused, or None."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if host and not self.knows(host_name(f"//{host}")):
            return "this service does not go by that name: allow it by the setting `allow_host`"
        same = origin is None or urlsplit(origin).netloc.lower() == host.lower() or host_name(origin) in self.allowed
        if method == "POST" and not same:
            return "this service takes no requests of other web pages: allow it by the setting `allow_host`"
        return None

    def knows(self, name: str) -> bool:
        """Return whether a host is one of ours."""
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return True


def host_name(address: str) -> str:
    """Return the host of an address, without its port; empty if there is none.

    >>> host_name("//localhost:8000"), host_name("http://[::1]:80"), host_name("null")
    ('localhost', '::1', '')
    """
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""
