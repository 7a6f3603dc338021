"""The chat app. The only package that imports gradio."""

from eagle_core.ui.app import build_app, launch
from eagle_core.ui.space import load_space, serve_space

__all__ = ["build_app", "launch", "load_space", "serve_space"]
