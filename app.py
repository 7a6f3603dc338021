"""Start the chat app: the default model, on this machine in the browser, or on Hugging Face Spaces."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from eagle_core.config import LoadConfig
from eagle_core.events import Event
from eagle_core.ui import launch, load_space, serve_space

if TYPE_CHECKING:
    from eagle_core.session import Session

# None but on Spaces. Where GPUs are lent per call, the model must be loaded here, before the app is launched.
SPACE = load_space()


def open_session(on_event: Callable[[Event], None]) -> Session:
    """Open the default model; torch is imported here, so the page is there sooner."""
    from eagle_core.session import Session

    return Session.open(LoadConfig(), on_event)


def main() -> None:
    """Serve until interrupted."""
    logging.basicConfig(level=logging.WARNING)
    if SPACE is not None:
        serve_space(SPACE)
    else:
        launch(open_session, on_ready=print)


if __name__ == "__main__":
    main()
