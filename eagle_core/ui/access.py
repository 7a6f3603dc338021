"""Who is answered: requests from this app's own page, and with the right password if there is one.

Gradio's own rule for foreign origins stands outside of this one and lets a browser ask for every web site as
soon as the app has another name than localhost; so requests are refused here, whatever it says.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Gradio asks its own server for this when it starts, without a password. It tells and changes nothing.
STARTUP_PATH = "/gradio_api/startup-events"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name and password. The password never shows in a message or a log."""

    user: str
    password: str = field(repr=False)


class SameOrigin:
    """ASGI middleware that refuses what a page of another site sends: it may neither do nor read anything."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on requests without an origin, and those whose origin is the host that they ask."""
        headers = Headers(scope=scope) if scope["type"] == "http" else None
        origin = headers.get("origin") if headers is not None else None
        if headers is None or origin is None or urlsplit(origin).netloc == headers.get("host"):
            await self.app(scope, receive, send)
            return
        refused = PlainTextResponse(
            "Pages of other sites may not use this app. Open its own address.", status_code=403
        )
        await refused(scope, receive, send)


class Login:
    """ASGI middleware that asks for user and password (HTTP Basic) before anything is answered."""

    def __init__(self, app: App, credentials: Credentials) -> None:
        self.app = app
        self._expected = f"{credentials.user}:{credentials.password}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on if it brings the right ones."""
        if scope["type"] != "http" or scope["path"] == STARTUP_PATH or self._is_known(scope):
            await self.app(scope, receive, send)
            return
        refused = PlainTextResponse(
            "This app wants a user name and a password.",
            status_code=401,
            headers={"www-authenticate": 'Basic realm="EAGLE chat", charset="UTF-8"'},
        )
        await refused(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            found = base64.b64decode(given, validate=True)
        except (binascii.Error, ValueError):
            return False
        return secrets.compare_digest(found, self._expected)


__all__ = ["Credentials", "Login", "SameOrigin"]
