"""What the app's window is drawn with: pywebview, and a toolkit of the system. Knows no page."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any

from eagle_core.errors import ConfigError

IN_BROWSER = "`eagle-chat serve` opens the same app in your browser"


def load_toolkit() -> Any:
    """The ``webview`` module, once it has found a toolkit of the system to draw with.

    Raises: ConfigError saying what is missing.
    """
    if sys.platform == "linux" and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        raise ConfigError(
            "there is no display to open a window on", hint=f"{IN_BROWSER}, also from elsewhere"
        )
    try:
        webview = importlib.import_module("webview")
    except ImportError as error:
        raise ConfigError(
            "the window needs the package pywebview",
            hint=f'pip install "pywebview>=6,<7"; or {IN_BROWSER}',
        ) from error
    # It writes what it misses with a traceback; the error below says it in a sentence.
    logging.getLogger("pywebview").setLevel(os.environ.get("PYWEBVIEW_LOG", "CRITICAL").upper())
    try:
        importlib.import_module("webview.guilib").initialize()
    except Exception as error:
        hint = 'install GTK (on Debian python3-gi and gir1.2-webkit2-4.1), or pip install "pywebview[qt]"'
        raise ConfigError(
            "the window finds no toolkit to draw with",
            got=str(error),
            hint=f"{hint if sys.platform == 'linux' else 'reinstall pywebview'}; or {IN_BROWSER}",
        ) from error
    return webview


__all__ = ["load_toolkit"]
