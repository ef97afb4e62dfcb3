"""Who may ask: this machine's browser, with the token, from a page of ours.

The server listens on 127.0.0.1 alone. Any page in the user's browser can send requests there, so:
- the name in the address must be this machine's own (a name that was pointed at 127.0.0.1 to get
  around the browser's same-origin rule is refused),
- the first part of the path is a random token that no other page knows,
- what changes something must come from a page of ours, as the browser's Origin header says.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .layout import bare_page
from .markup import paragraph

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # no-referrer would send forms with the origin `null`
    # Pages that we open (Perfetto's, on a click) can be spoken to; those that open us cannot.
    "cross-origin-opener-policy": "same-origin-allow-popups",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
LARGEST = 1 << 16  # bytes of a form


class Guard:
    """Wraps the application: refuses, or hands on with the path behind the token."""

    def __init__(self, app: App, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        reason = self.refusal(scope)
        if reason:
            await _refuse(send, *reason)
            return
        await self.app(scope, receive, _with_headers(send))

    def refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        """Status, what is wrong, and what to do; None if all is well."""
        given = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        host = given.get("host", "")
        if host_name(host) not in OWN_NAMES:
            return 403, "This page is reached under this machine's own name alone.", REOPEN
        token = scope["path"].split("/")[1] if scope["path"].count("/") else ""
        if not secrets.compare_digest(token.encode("utf-8", "replace"), self.token.encode()):
            return 403, "The address has no token, or that of another run.", REOPEN
        if scope["method"] in ("GET", "HEAD"):
            return None
        if given.get("origin") != f"http://{host}":
            return 403, "The request comes from another page.", "Use the buttons of this page."
        size = given.get("content-length", "")
        if not size.isdecimal() or int(size[:12]) > LARGEST:
            return 413, "The form is too large, or does not say its size.", "Fill it in again."
        return None


REOPEN = (
    "Open the whole address that `sanderling serve` printed; it is another one each time that the "
    "server is started."
)


def host_name(host: str) -> str:
    """Without the port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def _with_headers(send: Send) -> Send:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            own = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
            kept = [(k, v) for k, v in message["headers"] if k.decode("latin-1") not in HEADERS]
            message = {**message, "headers": kept + own}
        await send(message)

    return sending


async def _refuse(send: Send, status: int, what: str, fix: str) -> None:
    body = bare_page("Refused", [paragraph(what), paragraph(fix)]).encode()
    head = [(b"content-type", b"text/html; charset=utf-8")]
    own = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
    await send({"type": "http.response.start", "status": status, "headers": head + own})
    await send({"type": "http.response.body", "body": body})
