"""The chat app. The only package that imports gradio."""

from eagle_core.ui.app import build_app, launch

__all__ = ["build_app", "launch"]
