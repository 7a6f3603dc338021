"""The page's theme, style, script and headers: nothing is loaded from another machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import gradio as gr
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from eagle_core.assets import asset_path
from eagle_core.ui.access import Credentials, Login, Receive, SameOrigin, Scope, Send
from eagle_core.ui.streams import Streams

LOOPBACK = ("127.0.0.1", "localhost")
# Gradio's page needs inline scripts and compiles its templates. Images, frames, forms and connections to
# other machines are what text from a model could abuse; those stay closed.
CONTENT_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "worker-src 'self' blob:",
        "frame-src 'none'",
        "object-src 'none'",
        "form-action 'none'",
        "base-uri 'self'",
        "frame-ancestors 'none'",
    )
)
# A Space is shown in a frame of the Hub's page.
SPACE_POLICY = CONTENT_POLICY.replace(
    "frame-ancestors 'none'", "frame-ancestors https://huggingface.co https://*.hf.space"
)
STYLES = ("ui.css", "tokens.css", "chat.css", "race.css", "compare.css", "models.css")
# In this order: each uses what those before it define.
SCRIPTS = (
    "streams.js",
    "calm.js",
    "align.js",
    "color.js",
    "tokens.js",
    "overlay.js",
    "drawers.js",
    "found.js",
    "chat.js",
    "links.js",
    "race_plot.js",
    "race_picture.js",
    "race.js",
)
SYSTEM_FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
MONO_FONTS = [
    "ui-monospace",
    "SFMono-Regular",
    "Menlo",
    "Consolas",
    "DejaVu Sans Mono",
    "monospace",
]


class SecurityHeaders:
    """ASGI middleware that adds the content policy and its companions to every response."""

    def __init__(
        self, app: Callable[[Scope, Receive, Send], Awaitable[None]], policy: str = CONTENT_POLICY
    ) -> None:
        self.app, self._policy = app, policy.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; add the headers when the response starts."""

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", []),
                    (b"content-security-policy", self._policy),
                    (b"referrer-policy", b"no-referrer"),
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(message)

        await self.app(scope, receive, send_with_headers)


def middleware(host: str, auth: Credentials | None = None) -> list[Middleware]:
    """What stands before the app, the outermost first.

    Only this machine's names are answered, so a web page cannot reach the app by rebinding a name; and only
    this app's own pages, with the password if there is one.
    """
    names = [*LOOPBACK] if host in LOOPBACK else [*LOOPBACK, host]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - the user asked for every interface
        names = ["*"]
    return [
        Middleware(TrustedHostMiddleware, allowed_hosts=names),
        Middleware(SecurityHeaders, policy=CONTENT_POLICY),
        Middleware(SameOrigin),
        *([Middleware(Login, credentials=auth)] if auth is not None else []),
        Middleware(Streams),
    ]


def space_middleware() -> list[Middleware]:
    """The same for a Space: anybody may come, by a proxy with names of its own, and inside the Hub's frame.

    Nothing there belongs to one visitor that a page of another site could use: no login, no cookie, no file.
    Its proxy speaks HTTP/2 to browsers, for which one connection is enough, and hides who shares one.
    """
    return [Middleware(SecurityHeaders, policy=SPACE_POLICY)]


def theme() -> gr.themes.Base:
    """A calm theme in the system's own fonts."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.blue,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_lg,
        font=SYSTEM_FONTS,
        font_mono=MONO_FONTS,
    )


def head() -> str:
    """The app's style sheets and scripts, as elements of the page's head.

    Not Gradio's ``css`` argument: that one puts every rule below the app's container.
    """
    styles = "".join(f"<style>{text_of(name)}</style>" for name in STYLES)
    return styles + "".join(f"<script>{text_of(name)}</script>" for name in SCRIPTS)


def text_of(name: str) -> str:
    """An asset's text."""
    return asset_path(name).read_text(encoding="utf-8")


__all__ = [
    "CONTENT_POLICY",
    "LOOPBACK",
    "SecurityHeaders",
    "head",
    "middleware",
    "space_middleware",
    "theme",
]
