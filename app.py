"""Start the chat app: the default model, on this machine in the browser, or on Hugging Face Spaces."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from eagle_core.cli import main as command_line

if TYPE_CHECKING:
    from eagle_core.ui.space import Space


def load_space() -> Space | None:
    """What a Space serves; None on any other machine, where nothing is imported for it."""
    if os.environ.get("SYSTEM") != "spaces":
        return None
    from eagle_core.ui import load_space

    return load_space()


# None but on Spaces. Where GPUs are lent per call, the model must be loaded here, before the app is launched.
SPACE = load_space()


def main() -> None:
    """Serve until interrupted: on a machine of one's own as ``eagle-chat serve`` does, with its options."""
    if SPACE is None:
        sys.exit(command_line(["serve", *sys.argv[1:]]))
    from eagle_core.ui import serve_space

    logging.basicConfig(level=logging.WARNING)
    serve_space(SPACE)


if __name__ == "__main__":
    main()
