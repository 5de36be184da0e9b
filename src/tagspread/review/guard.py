"""Who may talk to the review server: only the pages that it served itself, at an address that only the user knows.

Other programs of the machine do not know the token in the address. Other pages in the same browser do not know it
either, and their requests carry another ``Origin``; a name that an attacker points at this machine (DNS rebinding)
arrives in ``Host``. Nothing is changed by GET.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BYTES = 2**20  # of a request's body
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),  # the address holds the token
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(host: str) -> bool:
    """Return whether a host name reaches this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """Passes a request on only if it has the token, an expected ``Host``, and, where it changes something, our origin.

    Args:
        app: the application; it sees paths without the token.
        token: first part of every path.
        host: host name that the server listens on.
        names: further names of this machine, if it listens on more than loopback.
    """

    def __init__(self, app: App, token: str, host: str, names: tuple[str, ...] = ()) -> None:
        self._app, self._token, self._host, self._names = app, token, host, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it with one line of text."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._refused(scope, headers)
        if refused is not None:
            await _answer(send, *refused)
            return
        inner = scope["path"][len(self._token) + 1 :]
        await self._app({**scope, "path": inner, "raw_path": inner.encode()}, receive, _with_headers(send))

    def _refused(self, scope: Scope, headers: MutableMapping[str, str]) -> tuple[int, str] | None:
        """Return status and message of a request that is refused; None for one that is not."""
        if not self._is_expected(headers.get("host", "")):
            return 421, "This server does not answer under this name; open the address that tagspread review printed."
        first, slash, _ = scope["path"].removeprefix("/").partition("/")
        if not slash or not secrets.compare_digest(first.encode(), self._token.encode()):
            return 403, "The address lacks the token; open the one that tagspread review printed when it was started."
        return None if scope["method"] in ("GET", "HEAD") else _refused_change(scope, headers)

    def _is_expected(self, host: str) -> bool:
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        name = name.strip("[]").lower()
        if is_loopback(self._host):
            return name in LOOPBACK or name == self._host
        if name in (self._host, *self._names, *LOOPBACK):
            return True
        try:  # a number cannot be pointed elsewhere, as a name can
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _refused_change(scope: Scope, headers: MutableMapping[str, str]) -> tuple[int, str] | None:
    """Return status and message of a request that may not change anything; None for one that may."""
    length = headers.get("content-length", "")
    checks = (
        (scope["method"] == "POST", 405, "Only GET and POST are allowed."),
        (headers.get("origin") == f"http://{headers['host']}", 403, "Another page sent this; nothing was changed."),
        (headers.get("content-type", "").split(";")[0] == "application/json", 415, "The content must be JSON."),
        (length.isdecimal() and int(length) <= MOST_BYTES, 413, "The content is too large, or its length is missing."),
    )
    return next(((status, text) for passed, status, text in checks if not passed), None)


def _with_headers(send: Send) -> Send:
    async def wrapped(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
        await send(message)

    return wrapped


async def _answer(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store"), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
